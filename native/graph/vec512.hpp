// SPDX-License-Identifier: Apache-2.0
// 512 bits of floats as the kernels of graphs use them. Loads need not be aligned.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer::avx512 {
namespace {

struct GraphVec {
  using Type = __m512;
  using Mask = __mmask16;
  using Lanes = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kMostVectors = 16;  // accumulators of one row
  static Type zero() { return _mm512_setzero_ps(); }
  static Type all(float v) { return _mm512_set1_ps(v); }
  static Mask first(int64_t count) {
    return count >= kLanes ? static_cast<Mask>(0xffff) : static_cast<Mask>((1u << count) - 1);
  }
  static Type load(const float* p) { return _mm512_loadu_ps(p); }
  static Type load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
  static void store(float* p, Type v) { _mm512_storeu_ps(p, v); }
  static void store(float* p, Type v, Mask m) { _mm512_mask_storeu_ps(p, m, v); }
  // Past the caches, to a whole vector's multiple; `fence` before others read it.
#ifdef GOSSAMER_EMULATED_AVX512  // SIMDe does not have it
  static void stream(float* p, Type v) { _mm512_storeu_ps(p, v); }
#else
  static void stream(float* p, Type v) { _mm512_stream_ps(p, v); }
#endif
  static void fence() { _mm_sfence(); }
  // bfloat16, the upper half of a float.
  static Type load(const uint16_t* p) {
    return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Type load(const uint16_t* p, Mask m) { return from_bf16(_mm256_maskz_loadu_epi16(m, p)); }
  static void store(uint16_t* p, Type v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
  static void store(uint16_t* p, Type v, Mask m) { _mm256_mask_storeu_epi16(p, m, to_bf16(v)); }
  static Type from_bf16(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  // To the nearest, halves to even; NaN stays one.
  static __m256i to_bf16(Type v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    const __m512i nan = _mm512_set1_epi32(0x7fc00000);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, nan), 16));
  }
  static Type load_or(const float* p, Mask m, Type other) { return _mm512_mask_loadu_ps(other, m, p); }
  static Type only(Type v, Mask m) { return _mm512_maskz_mov_ps(m, v); }
  static Type sub(Type a, Type b) { return _mm512_sub_ps(a, b); }
  static Type divide(Type a, Type b) { return _mm512_div_ps(a, b); }
  // 2^n for a whole number n that was added to 1.5 * 2^23, where it sits in the low bits.
  static Type two_to(Type shifted) {
    const __m512i n = _mm512_castps_si512(shifted);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  static Type mul(Type a, Type b) { return _mm512_mul_ps(a, b); }
  static Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  // The larger one; NaN where either is, as torch has it.
  static Type larger(Type x, Type most) {
    const Type found = _mm512_max_ps(x, most);
    return _mm512_mask_mov_ps(found, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
  }
  // sum + (a == b ? v : 0)
  static Type add_where_equal(Type sum, Type a, Type b, Type v) {
    return _mm512_mask_add_ps(sum, _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), sum, v);
  }
  // positive > 0 ? a : b
  static Type where_positive(Type positive, Type a, Type b) {
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(positive, _mm512_setzero_ps(), _CMP_GT_OQ), a);
  }
  // A bit for each number that is not 0.
  static uint32_t not_zero(Type v) { return _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_UQ); }
  static Lanes lanes(const int32_t* p) { return _mm512_loadu_si512(p); }
  static Type spread(Type v, Lanes from) { return _mm512_permutexvar_ps(from, v); }
  static void totals(const Type (&v)[4], float* to) {
    const Type ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const Type cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const Type abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
  }
};

}  // namespace
}  // namespace gossamer::avx512
