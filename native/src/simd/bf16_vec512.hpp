// SPDX-License-Identifier: Apache-2.0
// 512 bits for the bf16 kernels: 32 tokens are one vector of halves. The files add dot and halves.
#pragma once
#include "simd/dword_vec512.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

struct Bf16Vec512 : DwordVec512 {
  using Sum = Float;
  static constexpr int kPerDword = 2;
  static constexpr bool kHasPairs = false;
  static Float load_sum(const float* p) { return _mm512_load_ps(p); }
};

}  // namespace
}  // namespace gossamer
