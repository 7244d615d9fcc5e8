// SPDX-License-Identifier: Apache-2.0
#include "simd/encoder_int8.hpp"
#include "simd/encoder_kernel.hpp"
#include "simd/int8_vec256.hpp"
#include "simd/panel_vec256.hpp"

namespace gossamer::avx2 {
namespace {

void int8_linear(const Int8View& view, int64_t part, const uint8_t* bytes, const float* token_scales, float* out,
                 const float* bias, Activation activation, int64_t tokens) {
  const auto run = view.activation_bits == 7 ? encoder_int8_linear<Int8Vec256Bits7, 2>
                                             : encoder_int8_linear<Int8Vec256Bits8, 2>;
  run(view, part, bytes, token_scales, out, bias, activation, tokens);
}

const PanelShape shapes[] = {{0.15, 96, 1}, {0, 128, 1}};

}  // namespace

const EncoderKernels encoder_kernels = {
    encoder_linear<PanelVec256>, encoder_block<PanelVec256>, encoder_add_norm<PanelVec256>, encoder_gate, encoder_rotate,
    encoder_attend<PanelVec256, 2>, encoder_to_panel, encoder_from_panel, shapes};
const EncoderInt8Kernels encoder_int8_kernels = {encoder_quantise<Int8Vec256>, int8_linear, nullptr};

}  // namespace gossamer::avx2
