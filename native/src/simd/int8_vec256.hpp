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
  static Int larger_bits(Int bits, const float* p) {
    return _mm256_max_epi32(bits, _mm256_and_si256(load(p), _mm256_set1_epi32(0x7fffffff)));
  }
  static Int rounded(const float* p, const float* inverse, float limit) {
    const Float v = _mm256_max_ps(_mm256_mul_ps(_mm256_load_ps(p), _mm256_load_ps(inverse)), _mm256_set1_ps(-limit));
    return _mm256_cvtps_epi32(_mm256_min_ps(v, _mm256_set1_ps(limit)));
  }
  static Int bytes_of(const Int v[4], int offset) {
    const Int bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    return _mm256_add_epi8(bytes, _mm256_set1_epi8(static_cast<char>(offset)));
  }
  static Int dwords_of(const Int v[4], int offset) {
    const Int byte = _mm256_set1_epi32(255);
    const Int low = _mm256_or_si256(_mm256_and_si256(v[0], byte), _mm256_slli_epi32(_mm256_and_si256(v[1], byte), 8));
    const Int high = _mm256_or_si256(_mm256_slli_epi32(_mm256_and_si256(v[2], byte), 16), _mm256_slli_epi32(v[3], 24));
    return _mm256_add_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(static_cast<char>(offset)));
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
