// SPDX-License-Identifier: Apache-2.0
// From accumulators [row][lane] to the pixels of NCHW images, with AVX2 in the AVX-512 files too.
#pragma once
#include <immintrin.h>

#include "gossamer/conv.hpp"

namespace gossamer {

constexpr int64_t kAhead = 8;  // channels and rows of y to prefetch

// Pixels of another image of the shape of y onto the accumulators: the shortcut of a residual block.
static inline void add_rows(float* tile, int width, int64_t num_rows, const OutputChunk* chunks, int num_chunks,
                            const float* added, int64_t row_pixels) {
  for (int64_t r = 0; r < num_rows; ++r, tile += width, added += row_pixels)
    for (int i = 0; i < num_chunks; ++i) {
      float* to = tile + chunks[i].lane;
      const float* from = added + chunks[i].pixel;
      // Not wider than the chunk: lanes behind it may be pixels of the next one.
      if (chunks[i].lanes == kChunk)
        _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), _mm256_loadu_ps(from)));
      else
        for (int lane = 0; lane < chunks[i].lanes; ++lane) to[lane] += from[lane];
    }
}

static inline void store_rows(const float* tile, int width, int64_t num_rows, const OutputChunk* chunks, int num_chunks,
                              float* y, int64_t row_pixels) {
  for (int64_t r = 0; r < num_rows; ++r, tile += width, y += row_pixels)
    for (int i = 0; i < num_chunks; ++i) {
      const float* from = tile + chunks[i].lane;
      float* to = y + chunks[i].pixel;
      __builtin_prefetch(to + kAhead * row_pixels, 1);
      if (chunks[i].is_wide)
        _mm256_storeu_ps(to, _mm256_loadu_ps(from));
      else
        for (int lane = 0; lane < chunks[i].lanes; ++lane) to[lane] = from[lane];
    }
}

}  // namespace gossamer
