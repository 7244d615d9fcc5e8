// SPDX-License-Identifier: Apache-2.0
// bf16 is the upper half of a float.
#pragma once
#include <cstdint>
#include <cstring>

namespace gossamer {

static inline float from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

// To nearest, ties to even; NaN stays NaN.
static inline uint16_t to_bf16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  if (v != v) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace gossamer
