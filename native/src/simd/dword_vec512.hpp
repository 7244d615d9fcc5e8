// SPDX-License-Identifier: Apache-2.0
// 512 bits as dword_kernel.hpp moves them; the files of int8 and bf16 add the arithmetic.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct DwordVec512 {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kBytes = 64;
  static Int load(const void* p) { return _mm512_load_si512(p); }
  static Int loadu(const void* p) { return _mm512_loadu_si512(p); }
  static void store(void* p, Int v) { _mm512_store_si512(p, v); }
  static void store(float* p, Float v) { _mm512_store_ps(p, v); }
  static Float load_floats(const float* p) { return _mm512_load_ps(p); }
  static Int broadcast(int32_t v) { return _mm512_set1_epi32(v); }
  static Float broadcast(float v) { return _mm512_set1_ps(v); }
  static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Int low8(Int a, Int b) { return _mm512_unpacklo_epi8(a, b); }
  static Int high8(Int a, Int b) { return _mm512_unpackhi_epi8(a, b); }
  static Int low16(Int a, Int b) { return _mm512_unpacklo_epi16(a, b); }
  static Int high16(Int a, Int b) { return _mm512_unpackhi_epi16(a, b); }
};

}  // namespace
}  // namespace gossamer
