// SPDX-License-Identifier: Apache-2.0
#include "simd/int8_kernel.hpp"
#include "simd/int8_vec_vnni.hpp"

namespace gossamer::avx512vnni {
namespace {

void run(const Int8View& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
         int64_t last_tile, void* scratch) {
  const auto width = tile.width == 32 ? int8_forms<Int8Vec256Vnni, 1> : int8_forms<Int8Vec512Vnni, 1>;
  width(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 0};

}  // namespace

const Int8Kernels int8_kernels = {run, widths, {384, 384}, 8, PairRule::any,
                                  ceiling_dwords<Int8Vec512Vnni, 1, DwordForm::panel>,
                                  ceiling_dwords<Int8Vec512Vnni, 1, DwordForm::neighbours>};

}  // namespace gossamer::avx512vnni
