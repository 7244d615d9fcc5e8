// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes in two registers.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "table/noise.hpp"

namespace gossamer::table {

struct Vec256 {
  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  using Levels = F;

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static F load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static void store(float* to, F x) {
    _mm256_storeu_ps(to, x.a);
    _mm256_storeu_ps(to + 8, x.b);
  }
  static F load_part(const float* from, int count) {
    return {_mm256_maskload_ps(from, part(count)), count > 8 ? _mm256_maskload_ps(from + 8, part(count - 8)) : _mm256_setzero_ps()};
  }
  static void store_part(float* to, F x, int count) {
    _mm256_maskstore_ps(to, part(count), x.a);
    if (count > 8) _mm256_maskstore_ps(to + 8, part(count - 8), x.b);
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F root(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
  static F clamp(F x, F low, F high) {
    return {_mm256_min_ps(_mm256_max_ps(x.a, low.a), high.a), _mm256_min_ps(_mm256_max_ps(x.b, low.b), high.b)};
  }
  static F round(F x) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return add({_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)}, zero());
  }
  static F floor(F x) { return add({_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)}, zero()); }
  static int count_outside(F x, F low, F high) {
    const auto within = [](__m256 v, __m256 from, __m256 to) {
      return _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(v, from, _CMP_GE_OQ), _mm256_cmp_ps(v, to, _CMP_LT_OQ)));
    };
    return 16 - __builtin_popcount(static_cast<unsigned>(within(x.a, low.a, high.a))) -
           __builtin_popcount(static_cast<unsigned>(within(x.b, low.b, high.b)));
  }

  static I no_bits() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I larger(I top, F x) {
    const __m256i all_but_sign = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_max_epu32(top.a, _mm256_and_si256(_mm256_castps_si256(x.a), all_but_sign)),
            _mm256_max_epu32(top.b, _mm256_and_si256(_mm256_castps_si256(x.b), all_but_sign))};
  }
  static uint32_t largest(I top) {
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epu32(top.a, top.b));
    uint32_t found = 0;
    for (const uint32_t lane : lanes) found = lane > found ? lane : found;
    return found;
  }
  static float sum(F x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  template <int Bits>
  static Levels levels(float scale) { return set(scale); }
  template <int Bits>
  static F decode(const uint8_t* from, Levels levels) {
    __m256i a, b;
    if constexpr (Bits == 8) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      a = _mm256_cvtepi8_epi32(bytes);
      b = _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes));
    } else {
      int32_t words[2];
      std::memcpy(words, from, Bits * 2);
      if constexpr (Bits == 2) words[1] = words[0];
      const __m256i steps = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(Bits));
      const __m256i more = Bits == 2 ? _mm256_add_epi32(steps, _mm256_set1_epi32(16)) : steps;
      const __m256i field = _mm256_set1_epi32((1 << Bits) - 1), zero = _mm256_set1_epi32(1 << (Bits - 1));
      a = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(words[0]), steps), field);
      b = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(words[1]), more), field);
      a = _mm256_sub_epi32(a, zero);
      b = _mm256_sub_epi32(b, zero);
    }
    return mul(levels, {_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)});
  }
  static void store_bytes(int8_t* to, F x) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    const __m256i sorted = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(sorted), _mm256_extracti128_si256(sorted, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  }
  static F noise(uint32_t of_row, int64_t column) { return {eight(of_row, column), eight(of_row, column + 8)}; }

 private:
  static __m256i part(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m256 eight(uint32_t of_row, int64_t column) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i columns = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(column)), lane);
    const __m256i step = _mm256_set1_epi32(static_cast<int>(kColumnStep));
    __m256i x = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(of_row)), _mm256_mullo_epi32(columns, step));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), _mm256_set1_epi32(static_cast<int>(kMixFirst)));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), _mm256_set1_epi32(static_cast<int>(kMixSecond)));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(x, 8)), _mm256_set1_ps(5.9604644775390625e-08f));
  }
};

}  // namespace gossamer::table
