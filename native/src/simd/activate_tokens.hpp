// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gossamer/encoder.hpp"
#include "simd/activation.hpp"

namespace gossamer {

// Activations of the lanes in use.
static inline void activate_tokens(float* panel, int64_t rows, Activation activation, int64_t tokens) {
  if (activation == Activation::none) return;
  if (tokens > kTileTokens / 2) return activate(panel, rows * kTileTokens, activation);
  const int64_t lanes = tokens > kTileTokens / 4 ? kTileTokens / 2 : kTileTokens / 4;
  for (int64_t r = 0; r < rows; ++r) activate(panel + r * kTileTokens, lanes, activation);
}

}  // namespace gossamer
