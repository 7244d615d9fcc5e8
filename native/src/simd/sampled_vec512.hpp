// SPDX-License-Identifier: Apache-2.0
// The vectors of the sampled products. Loads need not be aligned: planes of a convolution are not, and on
// aligned data it costs nothing.
#pragma once
#include <immintrin.h>

namespace gossamer::avx512 {
namespace {

struct SampledVec {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static Type zero() { return _mm512_setzero_ps(); }
  static Type load(const float* p) { return _mm512_loadu_ps(p); }
  static Type mul(Type a, const float* b) { return _mm512_mul_ps(a, _mm512_loadu_ps(b)); }
  static Type fma(Type a, const float* b, Type c) { return _mm512_fmadd_ps(a, _mm512_loadu_ps(b), c); }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  static __m128 sum4(const Type (&v)[4]) {
    const Type ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const Type cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const Type abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m128 low = _mm_add_ps(_mm512_castps512_ps128(abcd), _mm512_extractf32x4_ps(abcd, 1));
    return _mm_add_ps(low, _mm_add_ps(_mm512_extractf32x4_ps(abcd, 2), _mm512_extractf32x4_ps(abcd, 3)));
  }
};

}  // namespace
}  // namespace gossamer::avx512
