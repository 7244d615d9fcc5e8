// SPDX-License-Identifier: Apache-2.0
// The convolution kernel, once, over the vector type V of panel_kernel.hpp. Copies to and from the
// image go by eight lanes, with AVX2 in the AVX-512 file too.
#pragma once
#include <immintrin.h>

#include "gossamer/conv.hpp"
#include "simd/panel_kernel.hpp"
#include "simd/store_pixels.hpp"

namespace gossamer {

// Where a tile starts.
struct TileStart {
  int64_t row, column;  // of the padded output
};

// Eight lanes of a slab: floats behind the channel's first pixel, and where their mask is. Columns
// outside the image may lie outside the channel.
struct Source {
  int32_t from, mask;
};

// The sources of a channel's slab in order, the same for every channel: walking rows and planes for
// each channel took 8 cycles a chunk on 8x8 pixels instead of 3.
struct GatherPlan {
  const Source* sources;
  int64_t num, num_first_plane;
  int64_t lowest, highest;  // of all `from`
  bool is_run;              // one run of pixels that all exist, as for 1x1 kernels
};

static inline GatherPlan plan_gather(const ConvView& conv, TileStart start, Source* sources) {
  const ConvGeometry& g = conv.geometry;
  const int32_t no_pixels = static_cast<int32_t>(conv.mask_lanes * g.kernel_w);
  const int64_t mask_step = g.stride_w == 2 ? 2 : 1;
  GatherPlan plan = {sources, 0, (conv.max_width + conv.planes[0].more_rows * conv.pitch) / kChunk, 0, 0, false};
  for (int64_t p = 0; p < conv.num_planes; ++p) {
    const ConvPlane& plane = conv.planes[p];
    const int64_t num = conv.max_width + plane.more_rows * conv.pitch;
    const int64_t mask = plane.kernel_column * conv.mask_lanes;
    int64_t h = start.row * g.stride_h + plane.kernel_row * g.dilation_h - g.pad_h, column = start.column;
    for (int64_t i = 0; i < num; i += kChunk) {
      const bool exists = h >= 0 && h < g.height;
      const int64_t w = column * g.stride_w + plane.kernel_column * g.dilation_w - g.pad_w;
      const int64_t from = exists ? h * g.width + w : 0;
      sources[plan.num++] = {static_cast<int32_t>(from),
                             exists ? static_cast<int32_t>(mask + column * mask_step) : no_pixels};
      if (from < plan.lowest) plan.lowest = from;
      if (from > plan.highest) plan.highest = from;
      column += kChunk;
      if (column >= conv.pitch) {
        column = 0;
        h += g.stride_h;
      }
    }
  }
  const int64_t lanes = conv.max_width + start.column;
  plan.is_run = conv.num_planes == 1 && conv.planes[0].more_rows == 0 && g.stride_w == 1 && g.pad_w == 0 &&
                g.pad_h == 0 && start.row == 0 && lanes <= g.width && lanes <= conv.pitch;
  return plan;
}

// One channel's slab. The image's neighbours in memory are loaded and masked away; only at the ends
// of the batch (not IN_MEMORY) are the loads themselves masked.
template <int STRIDE, bool IN_MEMORY>
static inline void gather_channel(const ConvView& conv, const GatherPlan& plan, const float* channel, float* slab) {
  const auto load = [](const float* from, const int32_t* masks) __attribute__((always_inline)) {
    const __m256i mask = _mm256_load_si256(reinterpret_cast<const __m256i*>(masks));
    return IN_MEMORY ? _mm256_and_ps(_mm256_loadu_ps(from), _mm256_castsi256_ps(mask))
                     : _mm256_maskload_ps(from, mask);
  };
  // Out of the structs, which the compiler would read again after every store.
  const Source* sources = plan.sources;
  const int32_t* all_masks = conv.masks;
  const int64_t num = plan.num;
#pragma GCC unroll 4
  for (int64_t i = 0; i < num; ++i) {
    // Both numbers with one load: the load ports are the bound here.
    int64_t source;
    __builtin_memcpy(&source, sources + i, sizeof source);
    const float* from = channel + static_cast<int32_t>(source);
    const int32_t* masks = all_masks + (source >> 32);
    __m256 lanes;
    if constexpr (STRIDE == 1) {
      lanes = load(from, masks);
    } else if constexpr (STRIDE == 2) {
      const __m256 even = _mm256_shuffle_ps(load(from, masks), load(from + kChunk, masks + kChunk), 0x88);
      lanes = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
    } else {
      const __m256i steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      const __m256i index = _mm256_mullo_epi32(steps, _mm256_set1_epi32(static_cast<int>(conv.geometry.stride_w)));
      const __m256 mask = _mm256_loadu_ps(reinterpret_cast<const float*>(masks));
      lanes = _mm256_mask_i32gather_ps(_mm256_setzero_ps(), from, index, mask, 4);
    }
    _mm256_store_ps(slab + i * kChunk, lanes);
  }
}

static inline void gather_block(const ConvView& conv, const ConvImage& image, const GatherPlan& plan, int64_t block,
                                float* slab) {
  const int64_t stride = conv.geometry.stride_w, num_lanes = conv.max_width;
  const int64_t first = block * conv.block_channels;
  const int64_t num = smaller(conv.block_channels, conv.geometry.channels - first);
  const int64_t pixels = conv.geometry.height * conv.geometry.width;
  for (int64_t c = 0; c < num; ++c, slab += conv.channel_floats) {
    const float* channel = image.x + (first + c) * pixels;
    // Channels are pages apart, where no hardware prefetcher looks.
    for (int64_t i = 0; i < plan.num_first_plane; i += 2)
      __builtin_prefetch(channel + kAhead * pixels + plan.sources[i].from);
    const bool in_memory = channel + plan.lowest >= image.begin &&
                           channel + plan.highest + 2 * kChunk <= image.end;
    if (plan.is_run)
      for (int64_t i = 0; i < num_lanes; i += kChunk)
        _mm256_store_ps(slab + i, _mm256_loadu_ps(channel + plan.sources[0].from + i));
    else if (stride == 1)
      (in_memory ? gather_channel<1, true> : gather_channel<1, false>)(conv, plan, channel, slab);
    else if (stride == 2)
      (in_memory ? gather_channel<2, true> : gather_channel<2, false>)(conv, plan, channel, slab);
    else
      gather_channel<0, false>(conv, plan, channel, slab);
  }
}

static inline void plan_output(const ConvView& conv, TileStart start, int num_chunks, OutputChunk* chunks) {
  int64_t row = start.row, column = start.column, end = 0;
  for (int i = 0; i < num_chunks; ++i) {
    const int64_t lanes = row < conv.out_h ? smaller(kChunk, conv.out_w - column) : 0;
    chunks[i] = {row * conv.out_w + column, i * kChunk, static_cast<int>(lanes), false};
    if (lanes > 0) end = chunks[i].pixel + lanes;
    column += kChunk;
    if (column >= conv.pitch) {
      column = 0;
      ++row;
    }
  }
  for (int i = 0; i < num_chunks; ++i) chunks[i].is_wide = chunks[i].pixel + kChunk <= end;
}

template <class V, int NV, int SETS>
void conv_tile(const ConvView& conv, const ConvCall& call, const ConvTile& at, float* scratch) {
  constexpr int kWidth = NV * V::kLanes;
  const PanelView& panel = conv.panel;
  const int64_t tile_floats = panel.tile_rows * kWidth;
  float* slab = scratch;
  float* tiles = slab + conv.slab_floats;
  float* bias = tiles + (at.last_tile - at.first_tile) * tile_floats;
  const TileStart start = {at.first / conv.pitch, at.first % conv.pitch};
  const int64_t num_bias = (at.last_tile - at.first_tile) * panel.tile_rows;
  const GatherPlan plan = plan_gather(conv, start, reinterpret_cast<Source*>(bias + num_bias));
  const int64_t first_row = at.first_tile * panel.tile_rows;
  const int64_t last_row = smaller(at.last_tile * panel.tile_rows, panel.rows);
  for (int64_t i = 0; i < num_bias; ++i)
    bias[i] = call.bias && first_row + i < last_row ? call.bias[first_row + i] : 0.0f;
  for (int64_t b = 0; b < panel.num_blocks; ++b) {
    gather_block(conv, call.image, plan, b, slab);
    for (int64_t part = at.first_tile; part < at.last_tile; ++part) {
      const int64_t i = part - at.first_tile;
      add_block<V, 1, NV, SETS, 1>(panel, panel.blocks[part * panel.num_blocks + b], slab,
                                   tiles + i * tile_floats, b ? nullptr : bias + i * panel.tile_rows);
    }
  }
  OutputChunk chunks[kWidth / kChunk];
  plan_output(conv, start, kWidth / kChunk, chunks);
  const int64_t row_pixels = conv.out_h * conv.out_w;
  if (call.added)
    add_rows(tiles, kWidth, last_row - first_row, chunks, kWidth / kChunk, call.added + first_row * row_pixels,
             row_pixels);
  activate(tiles, (last_row - first_row) * kWidth, call.activation);
  store_rows(tiles, kWidth, last_row - first_row, chunks, kWidth / kChunk, call.y + first_row * row_pixels,
             row_pixels);
}

}  // namespace gossamer
