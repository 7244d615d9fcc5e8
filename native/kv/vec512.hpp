// SPDX-License-Identifier: Apache-2.0
// 512 bits as the kernels of pages use them.
#pragma once
#include <cstring>

#include "attention/vec512.hpp"

namespace gossamer::avx512 {
namespace {

struct KvVec : AttentionVec {
  using Ints = __m512i;
  static constexpr int kBeside = 4;
  static Ints no_ints() { return _mm512_setzero_si512(); }
  static Ints load_bytes(const char* p) { return _mm512_loadu_si512(p); }
  // The same four bytes in all lanes.
  template <class Byte>
  static Ints all_fours(const Byte* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
  }
  // sum + the products of four unsigned and four signed bytes of each lane.
  static Ints dot(Ints sum, Ints a, Ints b) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, a, b);
#else
    // Even and odd bytes as halves: products of 16 bits are added in 32, where nothing overflows.
    const Ints even = _mm512_madd_epi16(_mm512_and_si512(a, _mm512_set1_epi16(255)),
                                        _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
    const Ints odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
  }
  // Codes of 4 bits as bytes.
  static Ints low_halves(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static Ints high_halves(Ints v) { return low_halves(_mm512_srli_epi16(v, 4)); }
  static Ints less_bytes(Ints v, int8_t by) { return _mm512_sub_epi8(v, _mm512_set1_epi8(by)); }
  static Ints less(Ints v, int32_t by) { return _mm512_sub_epi32(v, _mm512_set1_epi32(by)); }
  static Type to_float(Ints v) { return _mm512_cvtepi32_ps(v); }
  static Ints unsigned_byte(Ints v, int i) {
    return _mm512_and_si512(_mm512_srl_epi32(v, _mm_cvtsi32_si128(8 * i)), _mm512_set1_epi32(255));
  }
  static Ints signed_byte(Ints v, int i) {
    return _mm512_srai_epi32(_mm512_sll_epi32(v, _mm_cvtsi32_si128(24 - 8 * i)), 24);
  }
  static float largest(Type v) { return _mm512_reduce_max_ps(v); }
  static float total(Type v) { return _mm512_reduce_add_ps(v); }
  // A page of numbers of 0 to 255 as bytes.
  static void store_codes(const Type (&v)[1], char* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(v[0])));
  }
};

}  // namespace
}  // namespace gossamer::avx512
