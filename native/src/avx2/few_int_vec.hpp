// SPDX-License-Identifier: Apache-2.0
// Pieces of the integer kernels for few tokens: activations to bytes, weights to bytes, lanes to sums.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "gossamer/few_int.hpp"
#include "simd/byte_ranks.hpp"

namespace gossamer::avx2 {
namespace {

inline __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_bytes(uint8_t* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

inline int32_t sum_of_lanes(__m256i v) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

// As in the reference: the same products and the same roundings. Bytes are signed; `sums` are those of the
// two halves, scaled.
inline float quantise_step(const float* x, int64_t count, uint8_t* bytes, float* sums) {
  alignas(32) float padded[kIntStep];
  if (count < kIntStep) {
    for (int64_t i = 0; i < kIntStep; ++i) padded[i] = i < count ? x[i] : 0.0f;
    x = padded;
  }
  __m256 v[8];
  __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    // As integers magnitudes are in order, with infinity and NaN on top.
    largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff)));
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  uint32_t bits = 0;
  for (const uint32_t lane : lanes) bits = lane > bits ? lane : bits;
  float top;
  std::memcpy(&top, &bits, sizeof top);
  const bool is_finite = bits < 0x7f800000u;
  const float inverse = is_finite && top >= 1e-30f ? 127.0f / top : 0.0f;
  const float scale = is_finite ? (inverse != 0.0f ? top / 127.0f : 0.0f) : __builtin_nanf("");
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int half = 0; half < 2; ++half) {
    __m256i q = _mm256_setzero_si256();
    if (inverse != 0.0f) {
      __m256i wide[4];
      for (int i = 0; i < 4; ++i) wide[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[4 * half + i], _mm256_set1_ps(inverse)));
      q = _mm256_packs_epi16(_mm256_packs_epi32(wide[0], wide[1]), _mm256_packs_epi32(wide[2], wide[3]));
      q = _mm256_permutevar8x32_epi32(q, in_order);
    }
    store_bytes(bytes + kIntHalf * half, q);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    sums[half] = scale * static_cast<float>(sum_of_lanes(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
  }
  return scale;
}

inline __m128i two_words(const uint8_t* low, const uint8_t* high) {
  int64_t words[2];
  std::memcpy(words, low, 8), std::memcpy(words + 1, high, 8);
  return _mm_set_epi64x(words[1], words[0]);
}

// Kept bytes spread to the 32 columns of `mask`, `fill` elsewhere; `kept` moves behind them.
__attribute__((always_inline)) inline __m256i expand(const uint8_t*& kept, uint32_t mask, __m256i fill) {
  __m128i bytes[2], rank[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const uint32_t low = mask >> (16 * i) & 255, high = mask >> (16 * i + 8) & 255;
    const uint8_t* second = kept + __builtin_popcount(low);
    bytes[i] = two_words(kept, second);
    rank[i] = two_words(byte_ranks.of[low], byte_ranks.second[high]);
    kept = second + __builtin_popcount(high);
  }
  const __m256i rank32 = _mm256_set_m128i(rank[1], rank[0]);
  return _mm256_blendv_epi8(_mm256_shuffle_epi8(_mm256_set_m128i(bytes[1], bytes[0]), rank32), fill, rank32);
}

// 32 nibbles from 16 bytes, low ones first.
inline __m256i nibbles(const uint8_t* p) {
  const __m256i v = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)), _mm256_set1_epi8(15));
}

// What a weight of zero is stored as.
template <bool kInt4>
inline __m256i stored_zero() {
  return _mm256_set1_epi8(static_cast<char>(kInt4 ? 8 : 128));
}

// The next 64 columns, int4 as stored, int8 as signed bytes; `values` moves on. kDense: no mask.
template <bool kInt4, bool kDense>
__attribute__((always_inline)) inline void next_weights(const uint8_t*& values, const uint64_t* mask, __m256i* w) {
  const __m256i zero = stored_zero<kInt4>();
  if (kInt4) {
    w[0] = nibbles(values), w[1] = nibbles(values + 16);
    if (kDense) {
      values += kIntStep / 2;
      return;
    }
    alignas(32) uint8_t bytes[kIntStep + 8] = {};  // eight are read behind the last
    store_bytes(bytes, w[0]), store_bytes(bytes + kIntHalf, w[1]);
    const uint8_t* kept = bytes;
    w[0] = expand(kept, static_cast<uint32_t>(*mask), zero);
    w[1] = expand(kept, static_cast<uint32_t>(*mask >> 32), zero);
    values += (__builtin_popcountll(*mask) + 1) / 2;
    return;
  }
  if (kDense) {
    w[0] = load_bytes(values), w[1] = load_bytes(values + kIntHalf);
    values += kIntStep;
  } else {
    w[0] = expand(values, static_cast<uint32_t>(*mask), zero);
    w[1] = expand(values, static_cast<uint32_t>(*mask >> 32), zero);
  }
  w[0] = _mm256_xor_si256(w[0], zero), w[1] = _mm256_xor_si256(w[1], zero);
}

// The next twice 64 columns, of which int4 has one in the low and one in the high nibbles.
template <bool kInt4, bool kDense>
__attribute__((always_inline)) inline void next_two(const uint8_t*& values, const uint64_t* mask, __m256i* w) {
  if (!kInt4) {
    next_weights<kInt4, kDense>(values, mask, w);
    next_weights<kInt4, kDense>(values, kDense ? nullptr : mask + 1, w + 2);
    return;
  }
  const __m256i low = _mm256_set1_epi8(15);
  const auto high = [&](__m256i v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), low); };
  if (kDense) {
    const __m256i a = load_bytes(values), b = load_bytes(values + kIntHalf);
    w[0] = _mm256_and_si256(a, low), w[1] = _mm256_and_si256(b, low), w[2] = high(a), w[3] = high(b);
    values += kIntStep;
    return;
  }
  const __m256i zeros = _mm256_set1_epi8(static_cast<char>(0x88));
  const uint8_t *first = values, *second = values;
  w[0] = _mm256_and_si256(expand(first, static_cast<uint32_t>(mask[0]), zeros), low);
  w[1] = _mm256_and_si256(expand(first, static_cast<uint32_t>(mask[0] >> 32), zeros), low);
  w[2] = high(expand(second, static_cast<uint32_t>(mask[1]), zeros));
  w[3] = high(expand(second, static_cast<uint32_t>(mask[1] >> 32), zeros));
  values = first > second ? first : second;
}

// Products of 32 columns, as 16 sums of two that fit 16 bits: |q| <= 127 on both sides. Unsigned weights are
// at most 15; signed ones give their signs to the activations.
template <bool kSigned>
__attribute__((always_inline)) inline __m256i products(__m256i w, __m256i x) {
  if (!kSigned) return _mm256_maddubs_epi16(w, x);
  return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}

inline __m256i sums_of_two(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// 64 columns, as eight sums; four products of int4 fit 16 bits.
template <bool kInt4, bool kSigned>
__attribute__((always_inline)) inline __m256i step_products(const __m256i* w, const uint8_t* x) {
  const __m256i a = products<kSigned>(w[0], load_bytes(x)), b = products<kSigned>(w[1], load_bytes(x + kIntHalf));
  return kInt4 ? sums_of_two(_mm256_add_epi16(a, b)) : _mm256_add_epi32(sums_of_two(a), sums_of_two(b));
}

// Eight scales or offsets of int4.
inline __m256 from_bf16s(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline __m256 from_fp16s(const uint16_t* p) {  // as from_fp16
  const __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(halves, _mm256_set1_epi32(0x8000)), 16);
  const __m256i rest = _mm256_slli_epi32(_mm256_and_si256(halves, _mm256_set1_epi32(0x7fff)), 13);
  return _mm256_or_ps(_mm256_mul_ps(_mm256_castsi256_ps(rest), _mm256_set1_ps(0x1p112f)), _mm256_castsi256_ps(sign));
}

// The sums of 8 vectors in the lanes of one.
inline __m256 sums_of(const __m256* v) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

}  // namespace
}  // namespace gossamer::avx2
