// SPDX-License-Identifier: Apache-2.0
// What each file of this folder adds to the module.
#pragma once
#include <nanobind/nanobind.h>

namespace gossamer::bind {

void bind_bitmask(nanobind::module_& m);
void bind_conv(nanobind::module_& m);
void bind_packed_weight(nanobind::module_& m);

}  // namespace gossamer::bind
