// SPDX-License-Identifier: Apache-2.0
// 512 bits of floats as the kernels of attention use them.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer::avx512 {
namespace {

struct AttentionVec {
  using Type = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  static constexpr int kStrip = 4;  // vectors of a register tile
  static constexpr int kRows = 6;
  static Type zero() { return _mm512_setzero_ps(); }
  static Type all(float v) { return _mm512_set1_ps(v); }
  static Type load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Type v) { _mm512_storeu_ps(p, v); }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  static Type sub(Type a, Type b) { return _mm512_sub_ps(a, b); }
  static Type mul(Type a, Type b) { return _mm512_mul_ps(a, b); }
  static Type divide(Type a, Type b) { return _mm512_div_ps(a, b); }
  static Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  // The larger one; b where either is NaN.
  static Type larger(Type a, Type b) { return _mm512_max_ps(a, b); }
  static Mask bits(uint64_t row, int vector) { return static_cast<Mask>(row >> (16 * vector)); }
  static Type where(Mask m, Type a, Type b) { return _mm512_mask_mov_ps(b, m, a); }
  static Type only(Mask m, Type v) { return _mm512_maskz_mov_ps(m, v); }
  static Mask not_below(Type v, Type limit) { return _mm512_cmp_ps_mask(v, limit, _CMP_NLT_UQ); }
  // 2^n for a whole number n that was added to 1.5 * 2^23, where it sits in the low bits.
  static Type two_to(Type shifted) {
    const __m512i n = _mm512_castps_si512(shifted);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
  // Where DropBits::mix(lanes ^ row) > limit.
  static Mask kept(const uint32_t* lanes, uint32_t row, uint32_t limit) {
    __m512i x = _mm512_xor_si512(_mm512_loadu_si512(lanes), _mm512_set1_epi32(static_cast<int>(row)));
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), _mm512_set1_epi32(0x7feb352d));
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 15)),
                           _mm512_set1_epi32(static_cast<int>(0x846ca68bu)));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    return _mm512_cmpgt_epu32_mask(x, _mm512_set1_epi32(static_cast<int>(limit)));
  }
  static void transpose(Type (&v)[16]) {
    Type a[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]);
      a[2 * i + 1] = _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    Type b[16];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      b[4 * i] = _mm512_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
      b[4 * i + 1] = _mm512_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
      b[4 * i + 2] = _mm512_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
      b[4 * i + 3] = _mm512_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Type low = _mm512_shuffle_f32x4(b[i], b[4 + i], 0x88), high = _mm512_shuffle_f32x4(b[i], b[4 + i], 0xdd);
      const Type low2 = _mm512_shuffle_f32x4(b[8 + i], b[12 + i], 0x88);
      const Type high2 = _mm512_shuffle_f32x4(b[8 + i], b[12 + i], 0xdd);
      v[i] = _mm512_shuffle_f32x4(low, low2, 0x88);
      v[8 + i] = _mm512_shuffle_f32x4(low, low2, 0xdd);
      v[4 + i] = _mm512_shuffle_f32x4(high, high2, 0x88);
      v[12 + i] = _mm512_shuffle_f32x4(high, high2, 0xdd);
    }
  }
};

}  // namespace
}  // namespace gossamer::avx512
