// SPDX-License-Identifier: Apache-2.0
// The vectors of the sampled products. Loads need not be aligned: planes of a convolution are not, and on
// aligned data it costs nothing.
#pragma once
#include <immintrin.h>

namespace gossamer::avx2 {
namespace {

struct SampledVec {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type zero() { return _mm256_setzero_ps(); }
  static Type load(const float* p) { return _mm256_loadu_ps(p); }
  static Type mul(Type a, const float* b) { return _mm256_mul_ps(a, _mm256_loadu_ps(b)); }
  static Type fma(Type a, const float* b, Type c) { return _mm256_fmadd_ps(a, _mm256_loadu_ps(b), c); }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  static __m128 sum4(const Type (&v)[4]) {
    // Blends leave the two shuffle ports, one of which is also an FMA port, to the rest.
    const Type ab = add(_mm256_blend_ps(v[0], v[1], 0xcc), _mm256_shuffle_ps(v[0], v[1], 0x4e));
    const Type cd = add(_mm256_blend_ps(v[2], v[3], 0xcc), _mm256_shuffle_ps(v[2], v[3], 0x4e));
    const Type abcd = add(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
  }
};

}  // namespace
}  // namespace gossamer::avx2
