// SPDX-License-Identifier: Apache-2.0
// The loops of dense.hpp, for the compiler to vectorise: once per instruction set.
#pragma once
#include "dense.hpp"

// No product and sum may be fused: sets without such an instruction would round otherwise.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")

namespace gossamer {
namespace {

// Adding 1.5 * 2^23 rounds a small number to an integer, ties to even, and leaves it in the low bits.
constexpr float kRounder = 12582912.0f;

inline int32_t bits_of(float v) {
  int32_t bits;
  __builtin_memcpy(&bits, &v, sizeof bits);
  return bits;
}

// As integers: NaN and infinity are above every number.
inline int32_t largest_bits(const float* __restrict x, int64_t columns) {
  int32_t top = 0;
  for (int64_t k = 0; k < columns; ++k) {
    const int32_t bits = bits_of(x[k]) & 0x7fffffff;
    top = bits > top ? bits : top;
  }
  return top;
}

// In this order NaN becomes a number.
inline float rounded(float v, float inverse, float limit) {
  v *= inverse;
  v = v > -limit ? v : -limit;
  v = v < limit ? v : limit;
  return v + kRounder;
}

inline void write_bytes(const float* __restrict x, int64_t columns, float inverse, float limit, int offset,
                        uint8_t* __restrict bytes) {
  for (int64_t k = 0; k < columns; ++k)
    bytes[k] = static_cast<uint8_t>(bits_of(rounded(x[k], inverse, limit)) + offset);
}

inline void write_numbers(const float* __restrict x, int64_t columns, float inverse, float limit,
                          float* __restrict numbers) {
  for (int64_t k = 0; k < columns; ++k) numbers[k] = rounded(x[k], inverse, limit) - kRounder;
}

void to_bytes(const TokensToBytes& c, int64_t first, int64_t last) {
  const int offset = 1 << (c.bits - 1);
  const auto limit = static_cast<float>(offset - 1);
  for (int64_t t = first; t < last; ++t) {
    const float* const x = c.x + t * c.stride;
    const int32_t top_bits = largest_bits(x, c.columns);
    float top, inverse = 0.0f;
    __builtin_memcpy(&top, &top_bits, sizeof top);
    if (top_bits >= 0x7f800000) {
      c.scales[t] = __builtin_nanf("");
    } else if (top < 0x1p-120f) {
      c.scales[t] = 1.0f;
    } else {
      c.scales[t] = top / limit;
      inverse = limit / top;
    }
    if (c.bytes) write_bytes(x, c.columns, inverse, limit, offset, c.bytes + t * (c.bytes_stride ? c.bytes_stride : c.columns));
    if (c.numbers) write_numbers(x, c.columns, inverse, limit, c.numbers + t * c.columns);
  }
}

inline void finish_row(float* __restrict y, int64_t rows, float scale, const float* __restrict bias) {
  if (bias)
    for (int64_t r = 0; r < rows; ++r) y[r] = y[r] * scale + bias[r];
  else
    for (int64_t r = 0; r < rows; ++r) y[r] *= scale;
}

void finish(const FinishTokens& c, int64_t first, int64_t last) {
  for (int64_t t = first; t < last; ++t) finish_row(c.y + t * c.rows, c.rows, c.scales ? c.scales[t] : 1.0f, c.bias);
}

}  // namespace
}  // namespace gossamer

#pragma GCC pop_options
