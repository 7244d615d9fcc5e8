// SPDX-License-Identifier: Apache-2.0
// What each file of this folder adds to the module.
#pragma once
#include <nanobind/nanobind.h>

namespace gossamer::bind {

void bind_absorb(nanobind::module_& m);
void bind_adamw(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_bf16_pairs(nanobind::module_& m);
void bind_bitmask(nanobind::module_& m);
void bind_graph(nanobind::module_& m);
void bind_int8(nanobind::module_& m);  // after bind_packed_weight: its class is a base
void bind_io_order(nanobind::module_& m);
void bind_neurons(nanobind::module_& m);
void bind_nmg(nanobind::module_& m);
void bind_encoder(nanobind::module_& m);
void bind_few(nanobind::module_& m);
void bind_decoder(nanobind::module_& m);  // after bind_packed_weight
void bind_few_int(nanobind::module_& m);
void bind_conv(nanobind::module_& m);
void bind_conv_net(nanobind::module_& m);
void bind_packed_weight(nanobind::module_& m);
void bind_stored(nanobind::module_& m);  // after bind_packed_weight
void bind_strip(nanobind::module_& m);
void bind_table(nanobind::module_& m);
void bind_dense(nanobind::module_& m);
void bind_tall(nanobind::module_& m);
void bind_train(nanobind::module_& m);

}  // namespace gossamer::bind
