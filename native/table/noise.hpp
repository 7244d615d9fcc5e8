// SPDX-License-Identifier: Apache-2.0
// Noise of stochastic rounding: a function of seed and step, row and column, and of nothing else.
#pragma once
#include <cstdint>

namespace gossamer::table {

// Of one row at one step (splitmix64).
static inline uint32_t row_noise(uint64_t seed_and_step, int64_t row) {
  uint64_t x = seed_and_step + 0x9e3779b97f4a7c15ull * (static_cast<uint64_t>(row) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
}

// Multipliers of the 32-bit mixer that spreads it over columns (lowbias32).
constexpr uint32_t kColumnStep = 0x9e3779b9u, kMixFirst = 0x7feb352du, kMixSecond = 0x846ca68bu;

static inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * kMixFirst;
  x = (x ^ (x >> 15)) * kMixSecond;
  return x ^ (x >> 16);
}

// In [0, 1), 24 bits.
static inline float column_noise(uint32_t of_row, int64_t column) {
  const uint32_t x = mixed(of_row + kColumnStep * static_cast<uint32_t>(column));
  return static_cast<float>(static_cast<int32_t>(x >> 8)) * 5.9604644775390625e-08f;
}

}  // namespace gossamer::table
