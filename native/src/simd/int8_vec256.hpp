// SPDX-License-Identifier: Apache-2.0
// 256-bit integers for the int8 kernels: tiles of 64 tokens with AVX2, of 32 everywhere.
#pragma once
#include "simd/dword_vec256.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct Int8Vec256 : DwordVec256 {
  using Sum = Int;
  static constexpr int kPerDword = 4;
  static constexpr bool kHasPairs = true;
  static Int load_sum(const float* p) { return load(p); }
  static void store_natural(float* row, int q, Float v) {
    float* to = row + q / 4 * kBytes + q % 4 * 4;
    _mm_store_ps(to, _mm256_castps256_ps128(v));
    _mm_store_ps(to + 16, _mm256_extractf128_ps(v, 1));
  }
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
