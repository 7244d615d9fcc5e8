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

const int widths[] = {64, 32, 0};

}  // namespace

const Int8Kernels int8_kernels = {run, widths, 7, PairRule::bounded,
                                  ceiling_int8<Int8Vec256Bits7, 2, Int8Form::panel, false>,
                                  ceiling_int8<Int8Vec256Bits7, 2, Int8Form::quad, true>};

}  // namespace gossamer::avx2
