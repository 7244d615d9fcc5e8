// SPDX-License-Identifier: Apache-2.0
// What layers know of positions, spread out for the sequences of one run: turns of queries and keys for every lane of
// every tile, and biases of scores for every distance.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "gossamer/encoder_model.hpp"

namespace gossamer {

// [cosines, then sines][head_width / 2][64 tokens] of a tile.
inline size_t turn_floats(const Rotation& rotation) { return rotation.frequencies.size() * 2 * kTileTokens; }

inline void fill_turns(const RotationTable& table, const std::vector<int64_t>& lengths, float* turns) {
  const auto half = static_cast<int64_t>(table.rotation.frequencies.size());
  int64_t token = 0;
  for (const int64_t length : lengths)
    for (int64_t position = 0; position < length;) {
      const int64_t lane = token % kTileTokens, count = std::min(kTileTokens - lane, length - position);
      float* tile = turns + token / kTileTokens * 2 * half * kTileTokens;
      for (int64_t row = 0; row < 2 * half; ++row)
        for (int64_t i = 0; i < count; ++i) tile[row * kTileTokens + lane + i] = table.at(row, position + i);
      position += count;
      token += count;
    }
}

// Heads that have a row of their own; one row serves all where they are biased alike.
inline int64_t bias_rows(const DistanceBias& bias) {
  return bias.reach ? static_cast<int64_t>(bias.by_distance.size()) / (2 * bias.reach - 1) : 1;
}

// Distances 1 - longest to longest - 1, and what is read behind them.
inline int64_t bias_row_floats(int64_t longest) { return 2 * longest - 1 + kTileTokens; }

inline void fill_bias(const DistanceBias& bias, int64_t longest, float* to) {
  for (int64_t row = 0; row < bias_rows(bias); ++row)
    for (int64_t i = 0; i < bias_row_floats(longest); ++i) {
      const int64_t distance = i - (longest - 1);
      float& value = *to++;
      value = 0.0f;
      if (bias.reach)
        value = bias.by_distance[row * (2 * bias.reach - 1) + std::clamp(distance, 1 - bias.reach, bias.reach - 1) +
                                 bias.reach - 1];
      if (bias.window && std::abs(distance) > bias.window) value = -INFINITY;
    }
}

}  // namespace gossamer
