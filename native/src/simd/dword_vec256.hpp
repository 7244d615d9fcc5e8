// SPDX-License-Identifier: Apache-2.0
// 256 bits as dword_kernel.hpp moves them; the files of int8 and bf16 add the arithmetic.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct DwordVec256 {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kBytes = 32;
  static Int load(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
  static Int loadu(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, Int v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }
  static void store(float* p, Float v) { _mm256_store_ps(p, v); }
  static Float load_floats(const float* p) { return _mm256_load_ps(p); }
  static Int broadcast(int32_t v) { return _mm256_set1_epi32(v); }
  static Float broadcast(float v) { return _mm256_set1_ps(v); }
  static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Int low8(Int a, Int b) { return _mm256_unpacklo_epi8(a, b); }
  static Int high8(Int a, Int b) { return _mm256_unpackhi_epi8(a, b); }
  static Int low16(Int a, Int b) { return _mm256_unpacklo_epi16(a, b); }
  static Int high16(Int a, Int b) { return _mm256_unpackhi_epi16(a, b); }
};

}  // namespace
}  // namespace gossamer
