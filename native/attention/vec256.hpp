// SPDX-License-Identifier: Apache-2.0
// 256 bits of floats as the kernels of attention use them.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "simd/transpose8.hpp"

namespace gossamer::avx2 {
namespace {

struct AttentionVec {
  using Type = __m256;
  using Mask = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kStrip = 2;  // vectors of a register tile
  static constexpr int kRows = 6;
  static Type zero() { return _mm256_setzero_ps(); }
  static Type all(float v) { return _mm256_set1_ps(v); }
  static Type load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Type v) { _mm256_storeu_ps(p, v); }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  static Type sub(Type a, Type b) { return _mm256_sub_ps(a, b); }
  static Type mul(Type a, Type b) { return _mm256_mul_ps(a, b); }
  static Type divide(Type a, Type b) { return _mm256_div_ps(a, b); }
  static Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  // The larger one; b where either is NaN.
  static Type larger(Type a, Type b) { return _mm256_max_ps(a, b); }
  static Mask bits(uint64_t row, int vector) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i byte = _mm256_set1_epi32(static_cast<int>(row >> (8 * vector) & 0xff));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(byte, each), each));
  }
  static Type where(Mask m, Type a, Type b) { return _mm256_blendv_ps(b, a, m); }
  static Type only(Mask m, Type v) { return _mm256_and_ps(m, v); }
  static Mask not_below(Type v, Type limit) { return _mm256_cmp_ps(v, limit, _CMP_NLT_UQ); }
  // 2^n for a whole number n that was added to 1.5 * 2^23, where it sits in the low bits.
  static Type two_to(Type shifted) {
    const __m256i n = _mm256_castps_si256(shifted);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  // Where DropBits::mix(lanes ^ row) > limit.
  static Mask kept(const uint32_t* lanes, uint32_t row, uint32_t limit) {
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    __m256i x = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes)),
                                 _mm256_set1_epi32(static_cast<int>(row)));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), _mm256_set1_epi32(0x7feb352d));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)),
                           _mm256_set1_epi32(static_cast<int>(0x846ca68bu)));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(
        _mm256_xor_si256(x, sign), _mm256_xor_si256(_mm256_set1_epi32(static_cast<int>(limit)), sign)));
  }
  static void transpose(Type (&v)[8]) {
    Rows8 rows;
    for (int i = 0; i < 8; ++i) rows.r[i] = v[i];
    rows = transpose8(rows);
    for (int i = 0; i < 8; ++i) v[i] = rows.r[i];
  }
};

}  // namespace
}  // namespace gossamer::avx2
