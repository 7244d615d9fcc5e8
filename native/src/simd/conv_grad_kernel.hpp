// SPDX-License-Identifier: Apache-2.0
// The sampled product of a convolution, dW[kept] = (dY patches^T)[mask]: slabs are gathered as in the
// forward, and the dot products are those of the linear one.
#pragma once
#include "simd/conv_kernel.hpp"
#include "simd/sampled_kernel.hpp"

namespace gossamer {

// Rows of dY into tile[row][width], zeros in lanes that are no pixels: they drop what the slab holds there,
// unless it is infinite or NaN.
static inline void load_rows(const float* grad, int64_t row_pixels, int64_t num_rows, const OutputChunk* chunks,
                             int width, float* tile) {
  static const int32_t ones_and_zeros[2 * kChunk] = {-1, -1, -1, -1, -1, -1, -1, -1};
  for (int64_t r = 0; r < num_rows; ++r, grad += row_pixels, tile += width)
    for (int i = 0; i < width / kChunk; ++i) {
      const float* from = grad + chunks[i].pixel;
      __builtin_prefetch(from + kAhead * row_pixels);
      const int32_t* mask = ones_and_zeros + kChunk - chunks[i].lanes;
      const __m256i lanes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask));
      _mm256_store_ps(tile + i * kChunk, _mm256_maskload_ps(from, lanes));
    }
}

template <class V, int NV>
void conv_grad_tile(const ConvView& conv, const ConvImage& image, const float* grad, const ConvTile& at,
                    int64_t first_block, int64_t last_block, float* scratch, float* sums) {
  constexpr int kWidth = NV * V::kLanes;
  const PanelView& panel = conv.panel;
  float* slab = scratch;
  float* tiles = slab + conv.slab_floats;
  Source* sources = reinterpret_cast<Source*>(tiles + (at.last_tile - at.first_tile) * panel.tile_rows * kWidth);
  const TileStart start = {at.first / conv.pitch, at.first % conv.pitch};
  const GatherPlan plan = plan_gather(conv, start, sources);
  OutputChunk chunks[kWidth / kChunk];
  plan_output(conv, start, kWidth / kChunk, chunks);
  const int64_t first_row = at.first_tile * panel.tile_rows;
  const int64_t last_row = smaller(at.last_tile * panel.tile_rows, panel.rows);
  const int64_t row_pixels = conv.out_h * conv.out_w;
  load_rows(grad + first_row * row_pixels, row_pixels, last_row - first_row, chunks, kWidth, tiles);
  for (int64_t b = first_block; b < last_block; ++b) {
    gather_block(conv, image, plan, b, slab);
    for (int64_t part = at.first_tile; part < at.last_tile; ++part)
      add_dots<V, NV, 1>(panel, panel.blocks[part * panel.num_blocks + b], slab,
                         tiles + (part - at.first_tile) * panel.tile_rows * kWidth, sums);
  }
}

}  // namespace gossamer
