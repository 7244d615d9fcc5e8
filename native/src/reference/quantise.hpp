// SPDX-License-Identifier: Apache-2.0
// Activations as the reference kernels quantise them, and the weights they meet.
#pragma once
#include <cmath>
#include <cstring>

#include "gossamer/int8.hpp"

namespace gossamer::reference {

static inline uint32_t largest_of(const float* x, int64_t num) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < num; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

static inline void quantise_run(const float* x, int64_t num, float inverse, int bits, uint8_t* bytes) {
  const float limit = static_cast<float>(activation_limit(bits));
  for (int64_t i = 0; i < num; ++i) {
    float v = x[i] * inverse;
    v = v > -limit ? v : -limit;  // NaN becomes a number, too; its token's scale is NaN
    v = v < limit ? v : limit;
    bytes[i] = static_cast<uint8_t>(static_cast<int>(std::nearbyint(v)) + activation_offset(bits));
  }
}

static inline int weight_of(const DwordView& view, int64_t quad, int lane) {
  return static_cast<int8_t>(static_cast<uint32_t>(view.weights[quad]) >> (8 * lane));
}

}  // namespace gossamer::reference
