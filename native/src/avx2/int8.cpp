// SPDX-License-Identifier: Apache-2.0
#include "simd/int8_kernel.hpp"
#include "simd/int8_vec256.hpp"

namespace gossamer::avx2 {
namespace {

void run(const Int8View& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
         int64_t last_tile, void* scratch) {
  const bool narrow = tile.width == 32;
  const auto width = view.activation_bits == 7
                         ? (narrow ? int8_forms<Int8Vec256Bits7, 1> : int8_forms<Int8Vec256Bits7, 2>)
                         : (narrow ? int8_forms<Int8Vec256Bits8, 1> : int8_forms<Int8Vec256Bits8, 2>);
  width(view, call, tile, first_tile, last_tile, scratch);
}

// Blocks of 384 columns x 64 tokens or, where rows of a block get short, 768 x 32: at 50 / 80 / 90 / 95 %
// the panel ran at 122 / 107 / 89 / 64 GOP/s with the first and at 114 / 104 / 90 / 70 with the second.
const int widths[] = {64, 32, 0};

}  // namespace

const Int8Kernels int8_kernels = {run, widths, {384, 768}, 7, PairRule::bounded,
                                  ceiling_dwords<Int8Vec256Bits7, 2, DwordForm::panel>,
                                  ceiling_dwords<Int8Vec256Bits7, 2, DwordForm::neighbours>};

}  // namespace gossamer::avx2
