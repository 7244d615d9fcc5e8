// SPDX-License-Identifier: Apache-2.0
// The convolution kernel, once, over the vector type V of panel_kernel.hpp. Copies to and from the
// image go by eight lanes, with AVX2 in the AVX-512 file too.
#pragma once
#include <immintrin.h>

#include "gossamer/conv.hpp"
#include "simd/panel_kernel.hpp"

namespace gossamer {

constexpr int kChunk = 8;

// Where a tile starts, found once: the planes of all channels are walked alike.
struct TileStart {
  int64_t row, column;  // of the padded output
};

// `num` lanes of an image row from output column `column` on, zeros outside the image. A masked
// load each, also inside: finding the chunks that need none costs more than it saves.
template <int STRIDE>
static inline void copy_row(const float* from, const int32_t* masks, int64_t num, float* out) {
  for (int64_t i = 0; i < num; i += kChunk) {
    const auto load = [&](int64_t at) __attribute__((always_inline)) {
      const __m256i mask = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(masks + at));
      return _mm256_maskload_ps(from + at, mask);
    };
    if constexpr (STRIDE == 1) {
      _mm256_store_ps(out + i, load(i));
    } else {
      const __m256 even = _mm256_shuffle_ps(load(2 * i), load(2 * i + kChunk), 0x88);
      const __m256d turned = _mm256_castps_pd(even);
      _mm256_store_ps(out + i, _mm256_castpd_ps(_mm256_permute4x64_pd(turned, 0xd8)));
    }
  }
}

static inline void copy_row_strided(const ConvView& conv, const float* row, int64_t first, int64_t num,
                                    float* out) {
  for (int64_t i = 0; i < num; ++i) {
    const int64_t w = first + i * conv.geometry.stride_w;
    out[i] = w >= 0 && w < conv.geometry.width ? row[w] : 0.0f;
  }
}

static inline void gather_plane(const ConvView& conv, const float* channel, const ConvPlane& plane,
                                TileStart start, int64_t num, float* out) {
  const ConvGeometry& g = conv.geometry;
  const int64_t shift = plane.kernel_column * g.dilation_w - g.pad_w;
  const int32_t* masks = conv.masks + plane.kernel_column * conv.mask_chunks * kChunk;
  int64_t h = start.row * g.stride_h + plane.kernel_row * g.dilation_h - g.pad_h;
  for (int64_t column = start.column; num > 0; column = 0, h += g.stride_h) {
    const int64_t piece = smaller(conv.pitch - column, num);
    const float* row = channel + h * g.width;
    const int64_t at = column * g.stride_w;
    if (h < 0 || h >= g.height)
      for (int64_t i = 0; i < piece; i += kChunk) _mm256_store_ps(out + i, _mm256_setzero_ps());
    else if (g.stride_w == 1)
      copy_row<1>(row + at + shift, masks + at, piece, out);
    else if (g.stride_w == 2)
      copy_row<2>(row + at + shift, masks + at, piece, out);
    else
      copy_row_strided(conv, row, at + shift, piece, out);
    out += piece;
    num -= piece;
  }
}

static inline void gather_block(const ConvView& conv, const float* x, int64_t block, TileStart start, int width,
                                float* slab) {
  const int64_t first = block * conv.block_channels;
  const int64_t num = smaller(conv.block_channels, conv.geometry.channels - first);
  const int64_t image = conv.geometry.height * conv.geometry.width;
  for (int64_t c = 0; c < num; ++c)
    for (int64_t p = 0; p < conv.num_planes; ++p) {
      const ConvPlane& plane = conv.planes[p];
      gather_plane(conv, x + (first + c) * image, plane, start, width + plane.more_rows * conv.pitch,
                   slab + c * conv.channel_floats + plane.start);
    }
}

// Eight lanes of the accumulators and the pixels they become.
struct OutputChunk {
  int64_t pixel;
  int lanes;       // 0 for a chunk outside of the image
  bool is_wide;    // all eight may be written: what is too much is overwritten by the next chunks
};

static inline void plan_output(const ConvView& conv, TileStart start, int num_chunks, OutputChunk* chunks) {
  int64_t row = start.row, column = start.column, end = 0;
  for (int i = 0; i < num_chunks; ++i) {
    const int64_t lanes = row < conv.out_h ? smaller(kChunk, conv.out_w - column) : 0;
    chunks[i] = {row * conv.out_w + column, static_cast<int>(lanes), false};
    if (lanes > 0) end = chunks[i].pixel + lanes;
    column += kChunk;
    if (column >= conv.pitch) {
      column = 0;
      ++row;
    }
  }
  for (int i = 0; i < num_chunks; ++i) chunks[i].is_wide = chunks[i].pixel + kChunk <= end;
}

static inline void store_rows(const float* tile, int width, int64_t num_rows, const OutputChunk* chunks, float* y,
                              int64_t row_pixels) {
  for (int64_t r = 0; r < num_rows; ++r, tile += width, y += row_pixels)
    for (int i = 0; i < width / kChunk; ++i) {
      const float* from = tile + i * kChunk;
      float* to = y + chunks[i].pixel;
      if (chunks[i].is_wide)
        _mm256_storeu_ps(to, _mm256_load_ps(from));
      else
        for (int lane = 0; lane < chunks[i].lanes; ++lane) to[lane] = from[lane];
    }
}

template <class V, int G, int NV, int SETS>
void conv_tile(const ConvView& conv, const ConvCall& call, const ConvTile& at, float* scratch) {
  constexpr int kWidth = NV * V::kLanes;
  const PanelView& panel = conv.panel;
  const int64_t tile_floats = panel.tile_rows * kWidth;
  float* slab = scratch;
  float* tiles = slab + conv.slab_floats;
  float* bias = tiles + (at.last_tile - at.first_tile) * tile_floats;
  const TileStart start = {at.first / conv.pitch, at.first % conv.pitch};
  const int64_t first_row = at.first_tile * panel.tile_rows;
  const int64_t last_row = smaller(at.last_tile * panel.tile_rows, panel.rows);
  for (int64_t i = 0; i < (at.last_tile - at.first_tile) * panel.tile_rows; ++i)
    bias[i] = call.bias && first_row + i < last_row ? call.bias[first_row + i] : 0.0f;
  for (int64_t b = 0; b < panel.num_blocks; ++b) {
    gather_block(conv, call.x, b, start, kWidth, slab);
    for (int64_t part = at.first_tile; part < at.last_tile; ++part) {
      const int64_t i = part - at.first_tile;
      add_block<V, G, NV, SETS, 1>(panel, panel.blocks[part * panel.num_blocks + b], slab,
                                   tiles + i * tile_floats, b ? nullptr : bias + i * panel.tile_rows);
    }
  }
  OutputChunk chunks[kWidth / kChunk];
  plan_output(conv, start, kWidth / kChunk, chunks);
  const int64_t row_pixels = conv.out_h * conv.out_w;
  activate(tiles, (last_row - first_row) * kWidth, call.activation);
  store_rows(tiles, kWidth, last_row - first_row, chunks, call.y + first_row * row_pixels, row_pixels);
}

}  // namespace gossamer
