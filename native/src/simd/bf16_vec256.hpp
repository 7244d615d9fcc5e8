// SPDX-License-Identifier: Apache-2.0
// bf16 pairs without vdpbf16ps: a bf16 is the upper half of a float, so a pair is two FMAs.
#pragma once
#include "simd/dword_vec256.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

// to_bf16 of eight floats, as dwords.
static inline __m256i bf16_dwords(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan)), 16);
}

struct Bf16Vec256 : DwordVec256 {
  using Sum = Float;
  static constexpr int kPerDword = 2;
  static constexpr bool kHasPairs = false;
  static Float load_sum(const float* p) { return _mm256_load_ps(p); }
  static Int halves(const float* p) {
    const Int packed = _mm256_packus_epi32(bf16_dwords(_mm256_loadu_ps(p)), bf16_dwords(_mm256_loadu_ps(p + 8)));
    return _mm256_permute4x64_epi64(packed, 0xd8);
  }
  static Float upper(Int v) { return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-65536))); }
  static Float lower(Int v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
  static Float dot(Float sum, Int x, Int w) {
    return _mm256_fmadd_ps(lower(x), lower(w), _mm256_fmadd_ps(upper(x), upper(w), sum));
  }
};

}  // namespace
}  // namespace gossamer
