// SPDX-License-Identifier: Apache-2.0
#include "simd/sampled_kernel.hpp"
#include "simd/sampled_vec512.hpp"

namespace gossamer::avx512 {
namespace {

void sampled(const PanelView& view, const SampledCall& call, TokenTile tile, int64_t first_tile,
             int64_t last_tile, float* scratch, float* sums) {
  switch (tile.width) {
    case 64: return sampled_tile<SampledVec, 4>(view, call, tile, first_tile, last_tile, scratch, sums);
    case 32: return sampled_tile<SampledVec, 2>(view, call, tile, first_tile, last_tile, scratch, sums);
    default: return sampled_tile<SampledVec, 1>(view, call, tile, first_tile, last_tile, scratch, sums);
  }
}

const int widths[] = {64, 32, 16, 0};
const PanelShape shapes[] = {{0.15, 128, 1}, {0, 192, 1}};  // as measured with AVX2

}  // namespace

const SampledKernels sampled_kernels = {sampled, widths, shapes, ceiling_sampled<SampledVec, 4>};

}  // namespace gossamer::avx512
