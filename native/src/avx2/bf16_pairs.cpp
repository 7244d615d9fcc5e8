// SPDX-License-Identifier: Apache-2.0
// No instruction for bf16 here: correct, and no faster than fp32.
#include "simd/bf16_kernel.hpp"
#include "simd/bf16_vec256.hpp"

namespace gossamer::avx2 {
namespace {

void run(const Bf16View& view, const LinearCall& call, TokenTile tile, int64_t first_tile, int64_t last_tile,
         void* scratch) {
  const auto width = tile.width == 32 ? bf16_forms<Bf16Vec256, 2, 1> : bf16_forms<Bf16Vec256, 4, 1>;
  width(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 0};

}  // namespace

const Bf16Kernels bf16_kernels = {run, widths, {192, 384}, ceiling_dwords<Bf16Vec256, 4, DwordForm::panel>,
                                  ceiling_dwords<Bf16Vec256, 4, DwordForm::neighbours>};

}  // namespace gossamer::avx2
