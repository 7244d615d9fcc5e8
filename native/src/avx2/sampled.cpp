// SPDX-License-Identifier: Apache-2.0
#include "simd/sampled_kernel.hpp"
#include "simd/sampled_vec256.hpp"

namespace gossamer::avx2 {
namespace {

void sampled(const PanelView& view, const SampledCall& call, TokenTile tile, int64_t first_tile,
             int64_t last_tile, float* scratch, float* sums) {
  switch (tile.width) {
    case 64: return sampled_tile<SampledVec, 8>(view, call, tile, first_tile, last_tile, scratch, sums);
    case 32: return sampled_tile<SampledVec, 4>(view, call, tile, first_tile, last_tile, scratch, sums);
    case 16: return sampled_tile<SampledVec, 2>(view, call, tile, first_tile, last_tile, scratch, sums);
    default: return sampled_tile<SampledVec, 1>(view, call, tile, first_tile, last_tile, scratch, sums);
  }
}

const int widths[] = {64, 32, 16, 8, 0};
// Nothing but dY and the slab is read, so slabs may fill L1 and more. Measured at 80 / 90 / 95 %, 64 tokens,
// GFLOP/s and us to lay out 768x768: 96 columns 59 / 53 / 41 (318 / 276 / 260), 128 61 / 53 / 42 (250 / 228 / 213),
// 192 57 / 51 / 42 (217 / 179 / 169), 256 55 / 50 / 41; 32 tokens of 256 columns 51 / 47 / 40.
const PanelShape shapes[] = {{0.15, 128, 1}, {0, 192, 1}};

}  // namespace

const SampledKernels sampled_kernels = {sampled, widths, shapes, ceiling_sampled<SampledVec, 8>};

}  // namespace gossamer::avx2
