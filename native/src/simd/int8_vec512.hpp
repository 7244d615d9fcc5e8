// SPDX-License-Identifier: Apache-2.0
// 512-bit integers for the int8 kernels: 64 tokens are one vector of bytes.
#pragma once
#include "simd/dword_vec512.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct Int8Vec512 : DwordVec512 {
  using Sum = Int;
  static constexpr int kPerDword = 4;
  static constexpr bool kHasPairs = true;
  static Int load_sum(const float* p) { return load(p); }
  static Float scaled(Int sum, const float* token_scales, Float row_scale, Float bias) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(_mm512_load_ps(token_scales), row_scale), bias);
  }
};

}  // namespace
}  // namespace gossamer
