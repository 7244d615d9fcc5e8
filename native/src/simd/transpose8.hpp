// SPDX-License-Identifier: Apache-2.0
// 8x8 float transposition with AVX2, used by the AVX2 and the AVX-512 files alike: the transposes
// are under 5 % of the work at 50 % sparsity, and a 16x16 form brought nothing on Zen.
#pragma once
#include <immintrin.h>

namespace gossamer {

struct Rows8 {
  __m256 r[8];
};

static inline Rows8 transpose8(const Rows8& in) {
  const __m256 a0 = _mm256_unpacklo_ps(in.r[0], in.r[1]), a1 = _mm256_unpackhi_ps(in.r[0], in.r[1]);
  const __m256 a2 = _mm256_unpacklo_ps(in.r[2], in.r[3]), a3 = _mm256_unpackhi_ps(in.r[2], in.r[3]);
  const __m256 a4 = _mm256_unpacklo_ps(in.r[4], in.r[5]), a5 = _mm256_unpackhi_ps(in.r[4], in.r[5]);
  const __m256 a6 = _mm256_unpacklo_ps(in.r[6], in.r[7]), a7 = _mm256_unpackhi_ps(in.r[6], in.r[7]);
  const __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xee);
  const __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xee);
  const __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xee);
  const __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xee);
  return {{_mm256_permute2f128_ps(b0, b4, 0x20), _mm256_permute2f128_ps(b1, b5, 0x20),
           _mm256_permute2f128_ps(b2, b6, 0x20), _mm256_permute2f128_ps(b3, b7, 0x20),
           _mm256_permute2f128_ps(b0, b4, 0x31), _mm256_permute2f128_ps(b1, b5, 0x31),
           _mm256_permute2f128_ps(b2, b6, 0x31), _mm256_permute2f128_ps(b3, b7, 0x31)}};
}

// panel[k * width + t] = x[t * stride + k] for 8 tokens, columns 0..columns; tokens from
// `num_tokens` on become zero. Whole groups of 8 (FULL) skip the tests, which cost as much as the
// transposition itself.
template <bool FULL>
static inline void turn_tokens8(const float* x, int64_t stride, int64_t num_tokens, int64_t columns,
                                float* panel, int64_t width) {
  int64_t k = 0;
  for (; k + 8 <= columns; k += 8) {
    Rows8 rows;
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t)
      rows.r[t] = FULL || t < num_tokens ? _mm256_loadu_ps(x + t * stride + k) : _mm256_setzero_ps();
    const Rows8 turned = transpose8(rows);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) _mm256_store_ps(panel + (k + i) * width, turned.r[i]);
  }
  for (; k < columns; ++k)
    for (int t = 0; t < 8; ++t) panel[k * width + t] = t < num_tokens ? x[t * stride + k] : 0.0f;
}

static inline void tokens8_to_panel(const float* x, int64_t stride, int64_t num_tokens,
                                    int64_t columns, float* panel, int64_t width) {
  const auto turn = num_tokens >= 8 ? turn_tokens8<true> : turn_tokens8<false>;
  turn(x, stride, num_tokens, columns, panel, width);
}

// Eight rows of four tokens, turned: y[t] gets eight contiguous floats.
struct Tokens4 {
  __m256 t[4];
};

static inline Tokens4 turn_8x4(const float* tile, int64_t width) {
  __m256 in[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    in[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(tile + i * width)),
                                 _mm_load_ps(tile + (i + 4) * width), 1);
  const __m256 a0 = _mm256_unpacklo_ps(in[0], in[1]), a1 = _mm256_unpackhi_ps(in[0], in[1]);
  const __m256 a2 = _mm256_unpacklo_ps(in[2], in[3]), a3 = _mm256_unpackhi_ps(in[2], in[3]);
  return {{_mm256_shuffle_ps(a0, a2, 0x44), _mm256_shuffle_ps(a0, a2, 0xee),
           _mm256_shuffle_ps(a1, a3, 0x44), _mm256_shuffle_ps(a1, a3, 0xee)}};
}

// Sixteen rows of eight tokens. Both halves of a line of y are written one after the other, four
// lines at a time: with a stride of a multiple of 4 KiB all lines share one L1 set, and halves
// written a round apart cost 1.5 times as long.
static inline void turn_16x8(const float* tile, int64_t width, float* y, int64_t stride) {
#pragma GCC unroll 2
  for (int t = 0; t < 8; t += 4) {
    const Tokens4 low = turn_8x4(tile + t, width), high = turn_8x4(tile + 8 * width + t, width);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(y + (t + i) * stride, low.t[i]);
      _mm256_storeu_ps(y + (t + i) * stride + 8, high.t[i]);
    }
  }
}

// y[t * stride + r] = tile[r * width + t] for `num_tokens` <= 8 tokens and rows 0..rows.
template <bool FULL>
static inline void turn_rows(const float* tile, int64_t width, int64_t num_tokens, int64_t rows,
                             float* y, int64_t stride) {
  int64_t r = 0;
  if (FULL)
    for (; r + 16 <= rows; r += 16) turn_16x8(tile + r * width, width, y + r, stride);
  for (; r + 8 <= rows; r += 8) {
    Rows8 in;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) in.r[i] = _mm256_load_ps(tile + (r + i) * width);
    const Rows8 turned = transpose8(in);
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t)
      if (FULL || t < num_tokens) _mm256_storeu_ps(y + t * stride + r, turned.r[t]);
  }
  for (; r < rows; ++r)
    for (int64_t t = 0; t < num_tokens; ++t) y[t * stride + r] = tile[r * width + t];
}

static inline void tile_to_tokens8(const float* tile, int64_t width, int64_t num_tokens,
                                   int64_t rows, float* y, int64_t stride) {
  const auto turn = num_tokens >= 8 ? turn_rows<true> : turn_rows<false>;
  turn(tile, width, num_tokens, rows, y, stride);
}

}  // namespace gossamer
