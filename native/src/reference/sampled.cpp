// SPDX-License-Identifier: Apache-2.0
// The specification of the sampled product: plain loops over the layout, no intrinsics.
#include "gossamer/sampled.hpp"

namespace gossamer::reference {
namespace {

void sampled(const PanelView& view, const SampledCall& call, TokenTile tile, int64_t first_tile,
             int64_t last_tile, float*, float* sums) {
  for (int64_t part = first_tile; part < last_tile; ++part)
    for (int64_t b = 0; b < view.num_blocks; ++b) {
      const PanelBlock& block = view.blocks[part * view.num_blocks + b];
      int64_t slot = block.first_value;
      for (int64_t i = 0; i < block.num_rows; ++i) {
        const int64_t row = part * view.tile_rows + view.row_ids[block.first_row + i];
        for (int64_t j = 0; j < view.row_counts[block.first_row + i]; ++j, ++slot) {
          const int64_t column = b * view.block_columns + view.offsets[slot] / kOffsetUnit;
          float sum = 0.0f;
          for (int64_t t = tile.first; t < tile.first + tile.num_tokens; ++t)
            sum += call.grad[t * call.grad_stride + row] * call.x[t * call.x_stride + column];
          sums[slot] += sum;
        }
      }
    }
}

volatile float sink;

double ceiling(int64_t repeats) {
  static float slab[96 * 8];
  const float grad[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int64_t i = 0; i < repeats; ++i) {
    const float* row = slab + (i * 37 % 96) * 8;
    float sum = 0.0f;
    for (int q = 0; q < 8; ++q) sum += grad[q] * row[q];
    sink = sum;
  }
  return 16.0 * static_cast<double>(repeats);
}

const int widths[] = {64, 0};
const PanelShape shapes[] = {{0, 96, 1}};

}  // namespace

const SampledKernels sampled_kernels = {sampled, widths, shapes, ceiling};

}  // namespace gossamer::reference
