// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace gossamer {
namespace {  // built for one instruction set

// [16][16 dwords], `stride` bytes apart, turned: 16 vectors.
__attribute__((always_inline)) inline void turn_dwords(const uint8_t* from, int64_t stride, __m512i (&to)[16]) {
  __m512i by_four[4][4];  // [row / 4][dword % 4], a lane for every fourth dword
#pragma GCC unroll 4
  for (int a = 0; a < 4; ++a) {
    const uint8_t* rows = from + 4 * a * stride;
    const __m512i r0 = _mm512_loadu_si512(rows), r1 = _mm512_loadu_si512(rows + stride);
    const __m512i r2 = _mm512_loadu_si512(rows + 2 * stride), r3 = _mm512_loadu_si512(rows + 3 * stride);
    const __m512i low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    const __m512i low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    by_four[a][0] = _mm512_unpacklo_epi64(low01, low23);
    by_four[a][1] = _mm512_unpackhi_epi64(low01, low23);
    by_four[a][2] = _mm512_unpacklo_epi64(high01, high23);
    by_four[a][3] = _mm512_unpackhi_epi64(high01, high23);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(by_four[0][j], by_four[1][j], 0x44), b = _mm512_shuffle_i32x4(by_four[2][j], by_four[3][j], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(by_four[0][j], by_four[1][j], 0xee), d = _mm512_shuffle_i32x4(by_four[2][j], by_four[3][j], 0xee);
    to[j] = _mm512_shuffle_i32x4(a, b, 0x88);
    to[4 + j] = _mm512_shuffle_i32x4(a, b, 0xdd);
    to[8 + j] = _mm512_shuffle_i32x4(c, d, 0x88);
    to[12 + j] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
}

// sum += products of unsigned and signed bytes, four to a lane. The intrinsic of it makes GCC move every sum twice.
__attribute__((always_inline)) inline void add_products(__m512i& sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
}

}  // namespace
}  // namespace gossamer
