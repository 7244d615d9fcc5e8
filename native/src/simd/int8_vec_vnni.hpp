// SPDX-License-Identifier: Apache-2.0
// vpdpbusd: four products and their sum in one instruction, exact for 7 and 8 bits alike.
#pragma once
#include "simd/int8_vec256.hpp"
#include "simd/int8_vec512.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct Int8Vec512Vnni : Int8Vec512 {
  static Int dot(Int sum, Int x, Int w) { return _mm512_dpbusd_epi32(sum, x, w); }
  // The pair first: a chain of vpdpbusd alone waits five cycles for each.
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) {
    return _mm512_add_epi32(sum, dot(dot(_mm512_setzero_si512(), x0, w0), x1, w1));
  }
};

struct Int8Vec256Vnni : Int8Vec256 {
  static Int dot(Int sum, Int x, Int w) { return _mm256_dpbusd_epi32(sum, x, w); }
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) {
    return _mm256_add_epi32(sum, dot(dot(_mm256_setzero_si256(), x0, w0), x1, w1));
  }
};

}  // namespace
}  // namespace gossamer
