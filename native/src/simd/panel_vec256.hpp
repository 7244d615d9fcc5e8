// SPDX-License-Identifier: Apache-2.0
// 256 bits of floats as panel_kernel.hpp, encoder_kernel.hpp and neuron_kernel.hpp use them.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct PanelVec256 {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type zero() { return _mm256_setzero_ps(); }
  static Type broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Type load4(const float* p) {
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  }
  // A bf16 is the upper half of a float.
  static Type broadcast(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(*p) << 16)));
  }
  static Type load4(const uint16_t* p) {
    const __m128i four = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_broadcastsi128_si256(_mm_slli_epi32(four, 16)));
  }
  __attribute__((always_inline)) static Type splat(Type four, int i) {
    return i == 0   ? _mm256_permute_ps(four, 0x00)
           : i == 1 ? _mm256_permute_ps(four, 0x55)
           : i == 2 ? _mm256_permute_ps(four, 0xaa)
                    : _mm256_permute_ps(four, 0xff);
  }
  static Type load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Type v) { _mm256_store_ps(p, v); }
  static Type fma(Type a, const float* b, Type c) { return _mm256_fmadd_ps(a, _mm256_load_ps(b), c); }
  static Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  static Type loadu(const float* p) { return _mm256_loadu_ps(p); }
  static Type max(Type a, Type b) { return _mm256_max_ps(a, b); }
  static Type min(Type a, Type b) { return _mm256_min_ps(a, b); }
  static Type sqrt(Type v) { return _mm256_sqrt_ps(v); }
  // 2^n for a whole number n that was added to 1.5 * 2^23, where it sits in the low bits.
  static Type two_to(Type shifted) {
    const auto n = _mm256_castps_si256(shifted);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static Type all(float v) { return _mm256_set1_ps(v); }
  static void store_first(float* p, Type v, int count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane), v);
  }
  static Type loadu(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static Type loadu(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static float total(Type v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  static int32_t dot_codes(const int8_t* a, const int16_t* b, int64_t count) {
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t k = 0; k < count; k += 32)
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) {
        const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + k + q * 16)));
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + k + q * 16));
        sum[q] = _mm256_add_epi32(sum[q], _mm256_madd_epi16(codes, x));
      }
    return total_of(_mm256_add_epi32(sum[0], sum[1]));
  }
  // Bits 4n to 4n + 3 of word j of 32 times b[32n + j], all 32 words after 32 words.
  static int32_t dot_nibbles(const uint16_t* a, const int16_t* b, int64_t words) {
    const __m256i four = _mm256_set1_epi16(15);
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t j = 0; j < words; j += 16, b += j & 16 ? 16 : 112) {
      const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + j));
      const auto part = [&](__m256i codes, int n) {
        return _mm256_madd_epi16(codes, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 32 * n)));
      };
      sum[0] = _mm256_add_epi32(sum[0], part(_mm256_and_si256(all, four), 0));
      sum[1] = _mm256_add_epi32(sum[1], part(_mm256_and_si256(_mm256_srli_epi16(all, 4), four), 1));
      sum[0] = _mm256_add_epi32(sum[0], part(_mm256_and_si256(_mm256_srli_epi16(all, 8), four), 2));
      sum[1] = _mm256_add_epi32(sum[1], part(_mm256_srli_epi16(all, 12), 3));
    }
    return total_of(_mm256_add_epi32(sum[0], sum[1]));
  }
  static int32_t total_of(__m256i both) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
  }
  static void storeu(float* p, Type v) { _mm256_storeu_ps(p, v); }
  static float one(const float* p) { return *p; }
  static float one(const int8_t* p) { return *p; }
  static float one(const uint16_t* p) {
    const uint32_t bits = static_cast<uint32_t>(*p) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }
};

}  // namespace
}  // namespace gossamer
