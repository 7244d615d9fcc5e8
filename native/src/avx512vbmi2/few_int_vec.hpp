// SPDX-License-Identifier: Apache-2.0
// Pieces of the integer kernels for few tokens: activations to bytes, weights to bytes, lanes to sums.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "gossamer/few_int.hpp"

namespace gossamer::avx512vbmi2 {

// 16 floats, zeros behind the last of `count`.
inline __m512 load_some(const float* x, int64_t count) {
  if (count >= 16) return _mm512_loadu_ps(x);
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(count > 0 ? (1u << count) - 1 : 0), x);
}

// As in the reference: the same products and the same roundings. Bytes are q ^ flip.
inline float quantise_step(const float* x, int64_t count, char flip, uint8_t* bytes) {
  __m512 v[4];
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = load_some(x + 16 * i, count - 16 * i);
    // As integers magnitudes are in order, with infinity and NaN on top.
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(v[i]), magnitude));
  }
  const uint32_t bits = _mm512_reduce_max_epu32(largest);
  float top;
  std::memcpy(&top, &bits, sizeof top);
  const bool is_finite = bits < 0x7f800000u;
  const float inverse = is_finite && top >= 1e-30f ? 127.0f / top : 0.0f;
  const __m512 factor = _mm512_set1_ps(inverse);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i q = inverse != 0.0f ? _mm512_cvtps_epi32(_mm512_mul_ps(v[i], factor)) : _mm512_setzero_si512();
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes + 16 * i), _mm_xor_si128(_mm512_cvtepi32_epi8(q), _mm_set1_epi8(flip)));
  }
  return is_finite ? (inverse != 0.0f ? top / 127.0f : 0.0f) : __builtin_nanf("");
}

// 64 nibbles from 32 bytes: of v and v << 4 in 16 bits, the lower halves of both bytes.
inline __m512i nibbles(const uint8_t* p) {
  const __m512i v = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  constexpr int kOrAnd = (0xf0 | 0xcc) & 0xaa;
  return _mm512_ternarylogic_epi32(v, _mm512_slli_epi16(v, 4), _mm512_set1_epi8(15), kOrAnd);
}

// What a weight of zero is stored as.
template <bool kInt4>
inline __m512i stored_zero() {
  return _mm512_set1_epi8(static_cast<char>(kInt4 ? 8 : 128));
}

// The next 64 columns as they are stored; `values` moves on. kDense: no mask.
template <bool kInt4, bool kDense>
__attribute__((always_inline)) inline __m512i next_weights(const uint8_t*& values, const uint64_t* mask) {
  const __m512i stored = kInt4 ? nibbles(values) : _mm512_loadu_si512(values);
  if (kDense) {
    values += kInt4 ? kIntStep / 2 : kIntStep;
    return stored;
  }
  const uint64_t kept = *mask;
  const int64_t count = __builtin_popcountll(kept);
  values += kInt4 ? (count + 1) / 2 : count;
  return _mm512_mask_expand_epi8(stored_zero<kInt4>(), kept, stored);
}

// The next twice 64 columns, of which int4 has one in the low and one in the high nibbles.
template <bool kInt4, bool kDense>
__attribute__((always_inline)) inline void next_two(const uint8_t*& values, const uint64_t* mask, __m512i* w) {
  if (!kInt4) {
    w[0] = next_weights<kInt4, kDense>(values, mask);
    w[1] = next_weights<kInt4, kDense>(values, kDense ? nullptr : mask + 1);
    return;
  }
  const __m512i low = _mm512_set1_epi8(15), stored = _mm512_loadu_si512(values);
  w[0] = _mm512_and_si512(stored, low);
  w[1] = _mm512_and_si512(_mm512_srli_epi16(stored, 4), low);
  if (kDense) {
    values += kIntStep;
    return;
  }
  const int64_t counts[2] = {__builtin_popcountll(mask[0]), __builtin_popcountll(mask[1])};
  values += counts[0] > counts[1] ? counts[0] : counts[1];
  w[0] = _mm512_mask_expand_epi8(stored_zero<kInt4>(), mask[0], w[0]);
  w[1] = _mm512_mask_expand_epi8(stored_zero<kInt4>(), mask[1], w[1]);
}

// The int4 scales of 16 steps of a row.
inline __m512 step_scales(const FewIntView& view, int64_t row, int64_t step) {
  const uint16_t* scales = view.scales + row * view.scales_of_row;
  const int64_t left = view.steps - step;
  __m256i halves;
  if (view.span == 1) {
    halves = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1), scales + step);
  } else {
    alignas(32) uint16_t some[16] = {};
    for (int64_t i = 0; i < (left < 16 ? left : 16); ++i) some[i] = scales[(step + i) / view.span];
    halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(some));
  }
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// The sums of 16 vectors in the lanes of one.
inline __m512 sums_of(const __m512* v) {
  __m512 pairs[8], quads[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)  // lanes of 32 bits: v0 v1 v0 v1
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // v0 v1 v2 v3
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  // Quarters of 128 bits: first of a and b, then of all four.
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

}  // namespace gossamer::avx512vbmi2
