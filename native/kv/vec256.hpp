// SPDX-License-Identifier: Apache-2.0
// 256 bits as the kernels of pages use them.
#pragma once
#include <cstring>

#include "attention/vec256.hpp"

namespace gossamer::avx2 {
namespace {

struct KvVec : AttentionVec {
  using Ints = __m256i;
  static constexpr int kBeside = 2;
  static Ints no_ints() { return _mm256_setzero_si256(); }
  static Ints load_bytes(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  // The same four bytes in all lanes.
  template <class Byte>
  static Ints all_fours(const Byte* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
  }
  // sum + the products of four unsigned and four signed bytes of each lane: even and odd bytes as halves, products of
  // 16 bits are added in 32, where nothing overflows.
  static Ints dot(Ints sum, Ints a, Ints b) {
    const Ints even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                        _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const Ints odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
  }
  // Codes of 4 bits as bytes.
  static Ints low_halves(Ints v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static Ints high_halves(Ints v) { return low_halves(_mm256_srli_epi16(v, 4)); }
  static Ints less_bytes(Ints v, int8_t by) { return _mm256_sub_epi8(v, _mm256_set1_epi8(by)); }
  static Ints less(Ints v, int32_t by) { return _mm256_sub_epi32(v, _mm256_set1_epi32(by)); }
  static Type to_float(Ints v) { return _mm256_cvtepi32_ps(v); }
  static Ints unsigned_byte(Ints v, int i) {
    return _mm256_and_si256(_mm256_srl_epi32(v, _mm_cvtsi32_si128(8 * i)), _mm256_set1_epi32(255));
  }
  static Ints signed_byte(Ints v, int i) {
    return _mm256_srai_epi32(_mm256_sll_epi32(v, _mm_cvtsi32_si128(24 - 8 * i)), 24);
  }
  static float largest(Type v) {
    float lanes[8], most;
    store(lanes, v);
    most = lanes[0];
    for (int i = 1; i < 8; ++i) most = lanes[i] > most ? lanes[i] : most;
    return most;
  }
  static float total(Type v) {
    float lanes[8], sum = 0.0f;
    store(lanes, v);
    for (int i = 0; i < 8; ++i) sum += lanes[i];
    return sum;
  }
  // A page of numbers of 0 to 255 as bytes.
  static void store_codes(const Type (&v)[2], char* to) {
    const Ints halves = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1])), 0xd8);
    const Ints bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(halves, halves), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(bytes));
  }
};

}  // namespace
}  // namespace gossamer::avx2
