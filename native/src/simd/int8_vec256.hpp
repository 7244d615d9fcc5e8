// SPDX-License-Identifier: Apache-2.0
// 256-bit integers for the int8 kernels: tiles of 64 tokens with AVX2, of 32 everywhere.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct Int8Vec256 {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kBytes = 32;
  static Int load(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
  static Int loadu(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, Int v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }
  static void store(float* p, Float v) { _mm256_store_ps(p, v); }
  static void store_natural(float* row, int q, Float v) {
    float* to = row + q / 4 * kBytes + q % 4 * 4;
    _mm_store_ps(to, _mm256_castps256_ps128(v));
    _mm_store_ps(to + 16, _mm256_extractf128_ps(v, 1));
  }
  static Int broadcast(int32_t v) { return _mm256_set1_epi32(v); }
  static Float broadcast(float v) { return _mm256_set1_ps(v); }
  static Int low8(Int a, Int b) { return _mm256_unpacklo_epi8(a, b); }
  static Int high8(Int a, Int b) { return _mm256_unpackhi_epi8(a, b); }
  static Int low16(Int a, Int b) { return _mm256_unpacklo_epi16(a, b); }
  static Int high16(Int a, Int b) { return _mm256_unpackhi_epi16(a, b); }
  static Float scaled(Int sum, const float* token_scales, Float row_scale, Float bias) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(_mm256_load_ps(token_scales), row_scale), bias);
  }
};

// Activations of 7 bits: two products fit in 16 bits, and four of bounded weights do.
struct Int8Vec256Bits7 : Int8Vec256 {
  static Int widened(Int sum, Int words) {
    const Int quads = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(quads));
    return sum;
  }
  static Int dot(Int sum, Int x, Int w) { return widened(sum, _mm256_maddubs_epi16(x, w)); }
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) {
    return widened(sum, _mm256_add_epi16(_mm256_maddubs_epi16(x0, w0), _mm256_maddubs_epi16(x1, w1)));
  }
};

// Activations of 8 bits: 255 * 127 fits in 16 bits, the sum of two does not.
struct Int8Vec256Bits8 : Int8Vec256 {
  static Int dot(Int sum, Int x, Int w) {
    const Int even = _mm256_set1_epi16(0xff);
    sum = Int8Vec256Bits7::dot(sum, x, _mm256_and_si256(w, even));
    return Int8Vec256Bits7::dot(sum, x, _mm256_andnot_si256(even, w));
  }
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) { return dot(dot(sum, x0, w0), x1, w1); }
};

}  // namespace
}  // namespace gossamer
