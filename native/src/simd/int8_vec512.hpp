// SPDX-License-Identifier: Apache-2.0
// 512-bit integers for the int8 kernels: 64 tokens are one vector of bytes.
#pragma once
#include "simd/dword_vec512.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct Int8Vec512 : DwordVec512 {
  using Sum = Int;
  static constexpr int kPerDword = 4;
  static constexpr bool kHasPairs = true;
  static Int load_sum(const float* p) { return load(p); }
  static void store_natural(float* row, int q, Float v) {
    float* to = row + q / 4 * kBytes + q % 4 * 4;
    _mm_store_ps(to, _mm512_castps512_ps128(v));
    _mm_store_ps(to + 16, _mm512_extractf32x4_ps(v, 1));
    _mm_store_ps(to + 32, _mm512_extractf32x4_ps(v, 2));
    _mm_store_ps(to + 48, _mm512_extractf32x4_ps(v, 3));
  }
  // Of panels in float32 (encoder_int8.hpp): the bits of the largest |x|, rounded numbers, and their bytes in
  // the order that low8 ... high16 interleave to natural order, or as dwords of four columns.
  static Int larger_bits(Int bits, const float* p) {
    return _mm512_max_epi32(bits, _mm512_and_si512(_mm512_load_si512(p), _mm512_set1_epi32(0x7fffffff)));
  }
  static Int rounded(const float* p, const float* inverse, float limit) {
    const Float v = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(p), _mm512_load_ps(inverse)), _mm512_set1_ps(-limit));
    return _mm512_cvtps_epi32(_mm512_min_ps(v, _mm512_set1_ps(limit)));
  }
  static Int bytes_of(const Int v[4], int offset) {
    const Int bytes = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    return _mm512_add_epi8(bytes, _mm512_set1_epi8(static_cast<char>(offset)));
  }
  static Int dwords_of(const Int v[4], int offset) {
    const Int byte = _mm512_set1_epi32(255);
    const Int low = _mm512_or_si512(_mm512_and_si512(v[0], byte), _mm512_slli_epi32(_mm512_and_si512(v[1], byte), 8));
    const Int high = _mm512_or_si512(_mm512_slli_epi32(_mm512_and_si512(v[2], byte), 16), _mm512_slli_epi32(v[3], 24));
    return _mm512_add_epi8(_mm512_or_si512(low, high), _mm512_set1_epi8(static_cast<char>(offset)));
  }
  static Float scaled(Int sum, const float* token_scales, Float row_scale, Float bias) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(_mm512_load_ps(token_scales), row_scale), bias);
  }
};

// Activations of 7 bits, as in int8_vec256.hpp.
struct Int8Vec512Bits7 : Int8Vec512 {
  static Int widened(Int sum, Int words) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
  }
  static Int dot(Int sum, Int x, Int w) { return widened(sum, _mm512_maddubs_epi16(x, w)); }
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) {
    return widened(sum, _mm512_add_epi16(_mm512_maddubs_epi16(x0, w0), _mm512_maddubs_epi16(x1, w1)));
  }
};

struct Int8Vec512Bits8 : Int8Vec512 {
  static Int dot(Int sum, Int x, Int w) {
    const Int even = _mm512_set1_epi16(0xff);
    sum = Int8Vec512Bits7::dot(sum, x, _mm512_and_si512(w, even));
    return Int8Vec512Bits7::dot(sum, x, _mm512_andnot_si512(even, w));
  }
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) { return dot(dot(sum, x0, w0), x1, w1); }
};

}  // namespace
}  // namespace gossamer
