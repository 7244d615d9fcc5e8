// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace gossamer {

static inline float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

}  // namespace gossamer
