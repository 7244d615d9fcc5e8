// SPDX-License-Identifier: Apache-2.0
// The scale of codes, the same expression wherever it is computed (and in ops/table/quantiser.py).
#pragma once
#include <cstdint>
#include <cstring>

namespace gossamer::table {

constexpr float kSmallestScale = 1e-8f;

static inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// The next number of fp16 that is not smaller; beyond 65504 the number itself.
static inline float raised_to_half(float scale) {
  if (scale > 65504.0f) return scale;
  if (scale >= 6.103515625e-05f) return float_of_bits((bits_of_float(scale) + 0x1fffu) & ~0x1fffu);
  const float steps = scale * 16777216.0f;  // of 2^-24, exact
  const int32_t whole = static_cast<int32_t>(steps);
  return static_cast<float>(whole + (static_cast<float>(whole) < steps)) * 5.9604644775390625e-08f;
}

// top / highest, as fp16 where asked for.
static inline float scale_of(float top, float highest, bool half) {
  const float scale = top / highest;
  const float raised = scale <= kSmallestScale ? kSmallestScale : scale;  // a NaN stays one
  return half ? raised_to_half(raised) : raised;
}

}  // namespace gossamer::table
