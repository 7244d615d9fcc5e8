// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes in one register.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "table/noise.hpp"

namespace gossamer::table {

struct Vec512 {
  using F = __m512;
  using I = __m512i;
  // What codes stand for: their scale (8 bits), or all sixteen numbers, which one permutation then gives.
  using Levels = __m512;

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float value) { return _mm512_set1_ps(value); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F x) { _mm512_storeu_ps(to, x); }
  static F load_part(const float* from, int count) { return _mm512_maskz_loadu_ps(part(count), from); }
  static void store_part(float* to, F x, int count) { _mm512_mask_storeu_ps(to, part(count), x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F root(F a) { return _mm512_sqrt_ps(a); }
  static F clamp(F x, F low, F high) { return _mm512_min_ps(_mm512_max_ps(x, low), high); }
  // Half to even; + 0 makes -0 a zero without sign, as codes have it.
  static F round(F x) {
    return add(_mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), zero());
  }
  static F floor(F x) { return add(_mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC), zero()); }
  // How many lanes are not within [low, high).
  static int count_outside(F x, F low, F high) {
    const __mmask16 within = _mm512_cmp_ps_mask(x, low, _CMP_GE_OQ) & _mm512_cmp_ps_mask(x, high, _CMP_LT_OQ);
    return 16 - __builtin_popcount(within);
  }

  static I no_bits() { return _mm512_setzero_si512(); }
  // The larger magnitude, compared as bits.
  static I larger(I top, F x) {
    return _mm512_max_epu32(top, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
  }
  static uint32_t largest(I top) { return _mm512_reduce_max_epu32(top); }
  // Lane i + lane i + 8, then 4, 2, 1.
  static float sum(F x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  template <int Bits>
  static Levels levels(float scale) {
    if constexpr (Bits == 8) return set(scale);
    const __m512 codes = Bits == 4 ? _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
                                   : _mm512_setr_ps(-2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1);
    return mul(set(scale), codes);
  }
  // Sixteen codes.
  template <int Bits>
  static F decode(const uint8_t* from, Levels levels) {
    if constexpr (Bits == 8) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      return mul(levels, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
    } else if constexpr (Bits == 4) {
      int64_t word;
      std::memcpy(&word, from, 8);
      const __m512i halves = _mm512_permutexvar_epi32(
          _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), _mm512_set1_epi64(word));
      const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
      return _mm512_permutexvar_ps(_mm512_srlv_epi32(halves, shift), levels);
    } else {
      int32_t word;
      std::memcpy(&word, from, 4);
      const __m512i shift = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi32(word), shift), levels);
    }
  }
  // Whole numbers within a byte.
  static void store_bytes(int8_t* to, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
  }
  static F noise(uint32_t of_row, int64_t column) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i columns = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(column)), lane);
    const __m512i step = _mm512_set1_epi32(static_cast<int>(kColumnStep));
    __m512i x = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(of_row)), _mm512_mullo_epi32(columns, step));
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), _mm512_set1_epi32(static_cast<int>(kMixFirst)));
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 15)), _mm512_set1_epi32(static_cast<int>(kMixSecond)));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    return mul(_mm512_cvtepi32_ps(_mm512_srli_epi32(x, 8)), set(5.9604644775390625e-08f));
  }

 private:
  static __mmask16 part(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
};

}  // namespace gossamer::table
