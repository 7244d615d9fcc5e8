// SPDX-License-Identifier: Apache-2.0
// 256 bits of floats as the kernels of graphs use them. Loads need not be aligned.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer::avx2 {
namespace {

struct GraphVec {
  using Type = __m256;
  using Mask = __m256i;
  using Lanes = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kMostVectors = 8;  // accumulators of one row
  static Type zero() { return _mm256_setzero_ps(); }
  static Type all(float v) { return _mm256_set1_ps(v); }
  static Mask first(int64_t count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count >= kLanes ? kLanes : static_cast<int>(count)), lane);
  }
  static Type load(const float* p) { return _mm256_loadu_ps(p); }
  static Type load(const float* p, Mask m) { return _mm256_maskload_ps(p, m); }
  static void store(float* p, Type v) { _mm256_storeu_ps(p, v); }
  static void store(float* p, Type v, Mask m) { _mm256_maskstore_ps(p, m, v); }
  // Past the caches, to a whole vector's multiple; `fence` before others read it.
  static void stream(float* p, Type v) { _mm256_stream_ps(p, v); }
  static void fence() { _mm_sfence(); }
  // bfloat16, the upper half of a float.
  static Type load(const uint16_t* p) { return from_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Type load(const uint16_t* p, Mask m) {
    alignas(16) uint16_t lanes[kLanes] = {};
    __builtin_memcpy(lanes, p, count(m) * sizeof(uint16_t));
    return load(lanes);
  }
  static void store(uint16_t* p, Type v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16(v)); }
  static void store(uint16_t* p, Type v, Mask m) {
    alignas(16) uint16_t lanes[kLanes];
    store(lanes, v);
    __builtin_memcpy(p, lanes, count(m) * sizeof(uint16_t));
  }
  static size_t count(Mask m) {
    return static_cast<size_t>(__builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(m)))));
  }
  static Type from_bf16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // To the nearest, halves to even; NaN stays one.
  static __m128i to_bf16(Type v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    const __m256 kept = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(kept), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  }
  static Type load_or(const float* p, Mask m, Type other) {
    return _mm256_blendv_ps(other, _mm256_maskload_ps(p, m), _mm256_castsi256_ps(m));
  }
  static Type only(Type v, Mask m) { return _mm256_and_ps(v, _mm256_castsi256_ps(m)); }
  static Type sub(Type a, Type b) { return _mm256_sub_ps(a, b); }
  static Type divide(Type a, Type b) { return _mm256_div_ps(a, b); }
  // 2^n for a whole number n that was added to 1.5 * 2^23, where it sits in the low bits.
  static Type two_to(Type shifted) {
    const __m256i n = _mm256_castps_si256(shifted);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  static Type mul(Type a, Type b) { return _mm256_mul_ps(a, b); }
  static Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  // The larger one; NaN where either is, as torch has it.
  static Type larger(Type x, Type most) {
    return _mm256_blendv_ps(_mm256_max_ps(x, most), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  // sum + (a == b ? v : 0)
  static Type add_where_equal(Type sum, Type a, Type b, Type v) {
    return _mm256_add_ps(sum, _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), v));
  }
  // positive > 0 ? a : b
  static Type where_positive(Type positive, Type a, Type b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(positive, _mm256_setzero_ps(), _CMP_GT_OQ));
  }
  // A bit for each number that is not 0.
  static uint32_t not_zero(Type v) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ))); }
  static Lanes lanes(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Type spread(Type v, Lanes from) { return _mm256_permutevar8x32_ps(v, from); }
  static void totals(const Type (&v)[4], float* to) {
    const Type abcd = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
  }
};

}  // namespace
}  // namespace gossamer::avx2
