// SPDX-License-Identifier: Apache-2.0
// 512 bits of floats as panel_kernel.hpp, encoder_kernel.hpp and neuron_kernel.hpp use them.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct PanelVec512 {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static Type zero() { return _mm512_setzero_ps(); }
  static Type broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Type load4(const float* p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
  // A bf16 is the upper half of a float.
  static Type broadcast(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(static_cast<uint32_t>(*p) << 16)));
  }
  static Type load4(const uint16_t* p) {
    const __m128i four = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm512_castsi512_ps(_mm512_broadcast_i32x4(_mm_slli_epi32(four, 16)));
  }
  __attribute__((always_inline)) static Type splat(Type four, int i) {
    return i == 0   ? _mm512_permute_ps(four, 0x00)
           : i == 1 ? _mm512_permute_ps(four, 0x55)
           : i == 2 ? _mm512_permute_ps(four, 0xaa)
                    : _mm512_permute_ps(four, 0xff);
  }
  static Type load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, Type v) { _mm512_store_ps(p, v); }
  static Type fma(Type a, const float* b, Type c) { return _mm512_fmadd_ps(a, _mm512_load_ps(b), c); }
  static Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  static Type loadu(const float* p) { return _mm512_loadu_ps(p); }
  static Type max(Type a, Type b) { return _mm512_max_ps(a, b); }
  static Type min(Type a, Type b) { return _mm512_min_ps(a, b); }
  static Type sqrt(Type v) { return _mm512_sqrt_ps(v); }
  // 2^n for a whole number n that was added to 1.5 * 2^23, where it sits in the low bits.
  static Type two_to(Type shifted) {
    const auto n = _mm512_castps_si512(shifted);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
  static Type all(float v) { return _mm512_set1_ps(v); }
  static void store_first(float* p, Type v, int count) {
    _mm512_mask_storeu_ps(p, count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1), v);
  }
  static Type loadu(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static Type loadu(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static float total(Type v) { return _mm512_reduce_add_ps(v); }
  static int32_t dot_codes(const int8_t* a, const int16_t* b, int64_t count) {
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int64_t k = 0; k < count; k += 64)
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) {
        const __m512i codes =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + k + q * 32)));
        sum[q] = _mm512_add_epi32(sum[q], _mm512_madd_epi16(codes, _mm512_loadu_si512(b + k + q * 32)));
      }
    return _mm512_reduce_add_epi32(_mm512_add_epi32(sum[0], sum[1]));
  }
  // Bits 4n to 4n + 3 of word j of 32 times b[32n + j], all 32 words after 32 words.
  static int32_t dot_nibbles(const uint16_t* a, const int16_t* b, int64_t words) {
    const __m512i four = _mm512_set1_epi16(15);
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int64_t j = 0; j < words; j += 32, b += 128) {
      const __m512i all = _mm512_loadu_si512(a + j);
      const auto part = [&](__m512i codes, int n) { return _mm512_madd_epi16(codes, _mm512_loadu_si512(b + 32 * n)); };
      sum[0] = _mm512_add_epi32(sum[0], part(_mm512_and_si512(all, four), 0));
      sum[1] = _mm512_add_epi32(sum[1], part(_mm512_and_si512(_mm512_srli_epi16(all, 4), four), 1));
      sum[0] = _mm512_add_epi32(sum[0], part(_mm512_and_si512(_mm512_srli_epi16(all, 8), four), 2));
      sum[1] = _mm512_add_epi32(sum[1], part(_mm512_srli_epi16(all, 12), 3));
    }
    return _mm512_reduce_add_epi32(_mm512_add_epi32(sum[0], sum[1]));
  }
  static void storeu(float* p, Type v) { _mm512_storeu_ps(p, v); }
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
