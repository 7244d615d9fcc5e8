// SPDX-License-Identifier: Apache-2.0
// A tile of tokens as bf16 in one of the two forms of dwords.hpp. Of V it needs
//   V::halves(const float*)   16 floats rounded to bf16, in their order.
#pragma once
#include <immintrin.h>

#include "gossamer/bf16_pairs.hpp"
#include "simd/transpose8.hpp"

namespace gossamer {

// 16 columns of 8 tokens as 8 rows of dwords [column pair][token]. Tokens from `num_tokens` on and
// columns from `columns` on are zeros.
template <class V>
__attribute__((always_inline)) static inline Rows8 paired_columns(const float* x, int64_t stride, int64_t num_tokens,
                                                                  int64_t columns) {
  Rows8 rows;
#pragma GCC unroll 8
  for (int t = 0; t < 8; ++t) {
    if (t >= num_tokens) {
      rows.r[t] = _mm256_setzero_ps();
    } else if (columns >= 16) {
      rows.r[t] = _mm256_castsi256_ps(V::halves(x + t * stride));
    } else {
      alignas(64) float rest[16] = {};
      for (int64_t k = 0; k < columns; ++k) rest[k] = x[t * stride + k];
      rows.r[t] = _mm256_castsi256_ps(V::halves(rest));
    }
  }
  return transpose8(rows);
}

// Fills `tile` [padded columns * width] from all columns of x.
//
// In the panel form the halves of a column stand in the order that the 128-bit lanes of a vector
// interleave to natural order: eight tokens and those half a vector further share a store.
template <class V, int WIDTH>
static void round_tokens(const Bf16View& view, const LinearCall& call, TokenTile tokens, uint8_t* tile) {
  constexpr int kVector = V::kBytes / 2, kHalf = kVector / 2;  // tokens
  const float* x = call.x + tokens.first * call.x_stride;
  for (int vector = 0; vector < WIDTH; vector += kVector)
    for (int at = 0; at < kHalf; at += 8) {
      const int t = vector + at;
      for (int64_t k = 0; k < view.columns; k += 16) {
        const auto pairs = [&](int token) __attribute__((always_inline)) {
          return paired_columns<V>(x + token * call.x_stride + k, call.x_stride, tokens.num_tokens - token,
                                   view.columns - k);
        };
        const Rows8 low = pairs(t), high = pairs(t + kHalf);
        if (view.form == DwordForm::neighbours) {
          float* to = reinterpret_cast<float*>(tile) + k / 2 * WIDTH + t;
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) {
            _mm256_store_ps(to + i * WIDTH, low.r[i]);
            _mm256_store_ps(to + i * WIDTH + kHalf, high.r[i]);
          }
        } else {
          uint8_t* to = tile + (k * WIDTH + vector) * 2 + at * 4;
          const __m256i even = _mm256_set1_epi32(0xffff);
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) {
            const __m256i a = _mm256_castps_si256(low.r[i]), b = _mm256_castps_si256(high.r[i]);
            _mm256_store_si256(reinterpret_cast<__m256i*>(to + i * 4 * WIDTH),
                               _mm256_packus_epi32(_mm256_and_si256(a, even), _mm256_and_si256(b, even)));
            _mm256_store_si256(reinterpret_cast<__m256i*>(to + i * 4 * WIDTH + 2 * WIDTH),
                               _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)));
          }
        }
      }
    }
}

}  // namespace gossamer
