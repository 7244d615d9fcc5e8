// SPDX-License-Identifier: Apache-2.0
#include "simd/encoder_int8.hpp"
#include "simd/encoder_kernel.hpp"
#include "simd/int8_vec512.hpp"
#include "simd/panel_vec512.hpp"

namespace gossamer::avx512 {
namespace {

void int8_linear(const Int8View& view, int64_t part, const uint8_t* bytes, const float* token_scales, float* out,
                 const float* bias, Activation activation, int64_t tokens) {
  const auto run = view.activation_bits == 7 ? encoder_int8_linear<Int8Vec512Bits7, 1>
                                             : encoder_int8_linear<Int8Vec512Bits8, 1>;
  run(view, part, bytes, token_scales, out, bias, activation, tokens);
}

const PanelShape shapes[] = {{0.15, 96, 1}, {0, 128, 1}};

}  // namespace

const EncoderKernels encoder_kernels = {
    encoder_linear<PanelVec512>, encoder_block<PanelVec512>, encoder_add_norm<PanelVec512>, encoder_gate, encoder_rotate,
    encoder_attend<PanelVec512, 4>, encoder_to_panel, encoder_from_panel, shapes};
const EncoderInt8Kernels encoder_int8_kernels = {encoder_quantise<Int8Vec512>, int8_linear, nullptr};

}  // namespace gossamer::avx512
