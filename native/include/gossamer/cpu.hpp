// SPDX-License-Identifier: Apache-2.0
// Which kernel sets this build holds and this CPU can run, best first.
#pragma once
#include <vector>

#include "gossamer/panel.hpp"

namespace gossamer {

const std::vector<const KernelSet*>& available_kernels();

}  // namespace gossamer
