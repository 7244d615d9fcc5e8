// SPDX-License-Identifier: Apache-2.0
// 512-bit integers for the int8 kernels: 64 tokens are one vector of bytes.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct Int8Vec512 {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kBytes = 64;
  static Int load(const void* p) { return _mm512_load_si512(p); }
  static void store(void* p, Int v) { _mm512_store_si512(p, v); }
  static void store(float* p, Float v) { _mm512_store_ps(p, v); }
  static Int broadcast(int32_t v) { return _mm512_set1_epi32(v); }
  static Float broadcast(float v) { return _mm512_set1_ps(v); }
  static Int low8(Int a, Int b) { return _mm512_unpacklo_epi8(a, b); }
  static Int high8(Int a, Int b) { return _mm512_unpackhi_epi8(a, b); }
  static Int low16(Int a, Int b) { return _mm512_unpacklo_epi16(a, b); }
  static Int high16(Int a, Int b) { return _mm512_unpackhi_epi16(a, b); }
  static Float scaled(Int sum, const float* token_scales, Float row_scale, Float bias) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(_mm512_load_ps(token_scales), row_scale), bias);
  }
};

}  // namespace
}  // namespace gossamer
