// SPDX-License-Identifier: Apache-2.0
// A tile of tokens as unsigned bytes in one of the two forms, with AVX2, used by every set: it is
// bound by memory, and the wider forms of its packs leave lanes in an order that costs the gain.
//
// Four tokens go together: their largest values, then their bytes while they are still in L1.
#pragma once
#include <immintrin.h>

#include "gossamer/int8.hpp"
#include "simd/transpose8.hpp"

namespace gossamer {

static inline uint32_t largest_of(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// The bits of the largest |x| of four tokens. Integers: the order is that of the numbers, and
// unlike vmaxps they do not lose a NaN.
static inline void largest4(const float* const x[4], int64_t columns, uint32_t largest[4]) {
  const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
  __m256i top[4];
#pragma GCC unroll 4
  for (int t = 0; t < 4; ++t) top[t] = _mm256_setzero_si256();
  int64_t k = 0;
  for (; k + 8 <= columns; k += 8)
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t)
      top[t] = _mm256_max_epi32(
          top[t], _mm256_and_si256(no_sign, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x[t] + k))));
  for (int t = 0; t < 4; ++t) {
    largest[t] = largest_of(top[t]);
    for (int64_t i = k; i < columns; ++i) {
      uint32_t bits;
      __builtin_memcpy(&bits, x[t] + i, sizeof bits);
      bits &= 0x7fffffffu;
      largest[t] = bits > largest[t] ? bits : largest[t];
    }
  }
}

namespace {  // one copy per including file: each is built for another instruction set

struct Quantiser {
  __m256 inverse[4], limit;
  __m256i offset;

  // 4 tokens x 8 columns: 128-bit lane j holds dwords [token][4 columns] of columns 4j..4j+3.
  __attribute__((always_inline)) __m256i bytes(const __m256 v[4]) const {
    const __m256 lowest = _mm256_sub_ps(_mm256_setzero_ps(), limit);
    __m256i q[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      // In this order NaN becomes a number; its token's scale is NaN.
      const __m256 scaled = _mm256_max_ps(_mm256_mul_ps(v[t], inverse[t]), lowest);
      q[t] = _mm256_cvtps_epi32(_mm256_min_ps(scaled, limit));
    }
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_add_epi8(packed, offset);
  }
};

}  // namespace

// Calls put(k, bytes) for every 8 columns of four tokens; columns behind the last one are zeros.
template <class Put>
__attribute__((always_inline)) static inline void quantise4(const Quantiser& quantiser, const float* const x[4],
                                                            int64_t columns, const Put& put) {
  __m256 v[4];
  int64_t k = 0;
  for (; k + 8 <= columns; k += 8) {
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) v[t] = _mm256_loadu_ps(x[t] + k);
    put(k, quantiser.bytes(v));
  }
  if (k == columns) return;
  for (int t = 0; t < 4; ++t) {
    alignas(32) float rest[8] = {};
    for (int64_t i = k; i < columns; ++i) rest[i - k] = x[t][i];
    v[t] = _mm256_load_ps(rest);
  }
  put(k, quantiser.bytes(v));
}

// Fills `scales` [width] and the tile in `form`. `turned` is as large as the tile. Lanes without a
// token repeat the last one.
//
// In the panel form the bytes of a column stand in the order that LANES 128-bit lanes of a vector
// interleave to natural order: dword 4 * lane + i of a vector holds tokens of group LANES * i + lane.
template <int LANES>
static void quantise_tokens(const Int8View& view, const LinearCall& call, TokenTile tokens, uint8_t* tile,
                            uint8_t* turned, float* scales) {
  const int width = tokens.width;
  const int64_t columns = padded_columns(view);
  Quantiser quantiser;
  quantiser.limit = _mm256_set1_ps(static_cast<float>(activation_limit(view.activation_bits)));
  quantiser.offset = _mm256_set1_epi8(static_cast<char>(activation_offset(view.activation_bits)));
  for (int t = 0; t < width; t += 4) {
    const float* x[4];
    uint32_t largest[4];
    for (int i = 0; i < 4; ++i) {
      const int token = t + i < tokens.num_tokens ? t + i : tokens.num_tokens - 1;
      x[i] = call.x + (tokens.first + token) * call.x_stride;
    }
    largest4(x, view.columns, largest);
    for (int i = 0; i < 4; ++i) {
      const TokenScale token = token_scale(largest[i], view);
      scales[t + i] = token.scale;
      quantiser.inverse[i] = _mm256_set1_ps(token.inverse);
    }
    if (view.form == DwordForm::neighbours) {
      uint8_t* to = tile + t * 4;
      quantise4(quantiser, x, view.columns, [=](int64_t k, __m256i v) __attribute__((always_inline)) {
        _mm_store_si128(reinterpret_cast<__m128i*>(to + k * width), _mm256_castsi256_si128(v));
        _mm_store_si128(reinterpret_cast<__m128i*>(to + (k + 4) * width), _mm256_extracti128_si256(v, 1));
      });
    } else {
      // [group of 4 tokens][column][token]
      uint8_t* to = turned + t * columns;
      const __m256i by_column = _mm256_broadcastsi128_si256(
          _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
      quantise4(quantiser, x, view.columns, [=](int64_t k, __m256i v) __attribute__((always_inline)) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + k * 4), _mm256_shuffle_epi8(v, by_column));
      });
    }
  }
  if (view.form == DwordForm::neighbours) return;
  for (int half = 0; half < width / 32; ++half) {
    const uint8_t* from[8];
    for (int i = 0; i < 8; ++i) {
      const int dword = half * 8 + i, inside = dword % (4 * LANES);
      const int group = dword - inside + LANES * (inside % 4) + inside / 4;
      from[i] = turned + group * 4 * columns;
    }
    for (int64_t k = 0; k < columns; k += 8) {
      Rows8 rows;
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) rows.r[i] = _mm256_load_ps(reinterpret_cast<const float*>(from[i] + k * 4));
      rows = transpose8(rows);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i)
        _mm256_store_ps(reinterpret_cast<float*>(tile + (k + i) * width + half * 32), rows.r[i]);
    }
  }
}

}  // namespace gossamer
