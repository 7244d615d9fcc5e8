// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes for the kernels of few tokens.
#pragma once
#include "simd/few_types.hpp"

namespace gossamer {
namespace {

struct Vec512 {
  using Type = __m512;
  using Index = __m512i;
  static constexpr int kLanes = 16;
  static constexpr float kExpandedInt8 = 1.0f;

  static Type zero() { return _mm512_setzero_ps(); }
  static Type set1(float v) { return _mm512_set1_ps(v); }
  static Type load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Type v) { _mm512_storeu_ps(p, v); }
  static Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  static Type mul(Type a, Type b) { return _mm512_mul_ps(a, b); }
  static float sum(Type v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  // Sixteen stored values in a row, without their scale.
  static Type values(Fp32, const uint8_t* p) { return _mm512_loadu_ps(reinterpret_cast<const float*>(p)); }
  static Type values(Bf16, const uint8_t* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static Type values(Int8, const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Type values(Int4, const uint8_t* p) { return nibbles(load_u64(p)); }
  static Type nibbles(uint64_t word) {
    const __m512i up = _mm512_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i top = _mm512_sllv_epi32(halves(static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)), up);
    return _mm512_cvtepi32_ps(_mm512_and_si512(top, _mm512_set1_epi32(static_cast<int>(0xf0000000u))));
  }

  // The kept values from number `at` on, spread to columns 16 s.. of the mask bits, zeros elsewhere;
  // `at` moves behind them.
  template <class D>
  static Type expand(D, uint32_t bits, int s, const uint8_t* packed, uint64_t& at) {
    const uint32_t mask = bits >> (16 * s) & 0xffff;
    const Type kept = values(D{}, packed + at * D::kBits / 8);
    at += static_cast<uint64_t>(__builtin_popcount(mask));
    return _mm512_maskz_expand_ps(static_cast<__mmask16>(mask), kept);
  }
  static Type expand(Int4, uint32_t bits, int s, const uint8_t* packed, uint64_t& at) {
    const uint64_t mask = bits >> (16 * s) & 0xffff;
    const uint8_t* p = packed + at / 2;
    const uint64_t word = at % 2 ? load_u64(p) >> 4 | static_cast<uint64_t>(p[8]) << 60 : load_u64(p);
    at += static_cast<uint64_t>(__builtin_popcountll(mask));
    return nibbles(_pdep_u64(word, _pdep_u64(mask, 0x1111111111111111u) * 15));
  }

  // Positions of sixteen rows in a window of W; only the bits that pick() reads are right.
  template <int W>
  static Index positions(const uint8_t* p) {
    if (W > 16) return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    constexpr int b = W <= 4 ? 2 : W <= 8 ? 3 : 4;
    const __m512i down = _mm512_setr_epi32(0, b, 2 * b, 3 * b, 4 * b, 5 * b, 6 * b, 7 * b, 0, b, 2 * b, 3 * b,
                                           4 * b, 5 * b, 6 * b, 7 * b);
    return _mm512_srlv_epi32(halves(load_u32(p), load_u32(p + b)), down);
  }

  // x[position] for every lane.
  template <int W>
  static Type pick(const float* x, Index at) {
    if (W <= 4) return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(x)), at);
    if (W <= 8) return _mm512_permutexvar_ps(at, _mm512_broadcast_f32x8(_mm256_loadu_ps(x)));
    if (W <= 16) return _mm512_permutexvar_ps(at, load(x));
    return _mm512_permutex2var_ps(load(x), at, load(x + 16));
  }

 private:
  static __m512i halves(uint32_t low, uint32_t high) {
    return _mm512_mask_set1_epi32(_mm512_set1_epi32(static_cast<int>(low)), 0xff00, static_cast<int>(high));
  }
};

}  // namespace
}  // namespace gossamer
