// SPDX-License-Identifier: Apache-2.0
// For CPUs with AVX-512 but without VNNI.
#include "simd/int8_kernel.hpp"
#include "simd/int8_vec256.hpp"
#include "simd/int8_vec512.hpp"

namespace gossamer::avx512 {
namespace {

void run(const Int8View& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
         int64_t last_tile, void* scratch) {
  const bool narrow = tile.width == 32;
  const auto width = view.activation_bits == 7
                         ? (narrow ? int8_forms<Int8Vec256Bits7, 1> : int8_forms<Int8Vec512Bits7, 1>)
                         : (narrow ? int8_forms<Int8Vec256Bits8, 1> : int8_forms<Int8Vec512Bits8, 1>);
  width(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 0};

}  // namespace

const Int8Kernels int8_kernels = {run, widths, {384, 384}, 7, PairRule::bounded,
                                  ceiling_dwords<Int8Vec512Bits7, 1, DwordForm::panel>,
                                  ceiling_dwords<Int8Vec512Bits7, 1, DwordForm::neighbours>};

}  // namespace gossamer::avx512
