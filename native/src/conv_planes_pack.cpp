// SPDX-License-Identifier: Apache-2.0
// Weights of a network for planes: distances in bytes, and for fixed point what its numbers stand for.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

#include "gossamer/conv_net_model.hpp"

namespace gossamer {
namespace {

constexpr int64_t kMaxBlockBytes = 28 * 1024;  // of L1
constexpr float kOne = 32768.0f;               // what a factor of fixed point is divided by
constexpr float kMost = 32767.0f;

uint32_t bits_of(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}

uint32_t twice(float v) {
  const auto code = static_cast<int16_t>(std::lrint(std::clamp(v, -kMost, kMost)));
  return static_cast<uint16_t>(code) * 0x10001u;
}

// Bytes of one channel that a tile sees: a piece for each row of the kernel, or all between the first and the last.
int64_t tile_bytes(const NetConv& conv, int64_t pitch, int64_t element) {
  std::set<std::pair<int64_t, int64_t>> rows;
  int64_t first = 0, last = 0;
  for (const NetPosition& at : conv.positions) {
    rows.emplace(at.phase, at.rows);
    first = std::min(first, at.rows * pitch + at.columns);
    last = std::max(last, at.rows * pitch + at.columns);
  }
  constexpr int64_t kTileBytes = kPlaneVectors * kPlaneVectorBytes;
  return std::min(static_cast<int64_t>(rows.size()) * (kTileBytes + 64), conv.phases * (kTileBytes + (last - first) * element));
}

}  // namespace

// Sums in units of which all that an image may sum up to has fewer than 2^15: they are cut off nowhere. `factor` makes
// codes of weights.
PlaneRule ConvNet::plane_rule(const NetConv& conv, const float* values, int64_t kept, float bias, float* factor) const {
  const NetValue& in = values_[conv.from];
  const int most = (1 << bits_) - 1;
  const double up = most - in.zero, down = in.zero;
  double positive = 0.0, negative = 0.0, largest = 0.0;
  for (int64_t i = 0; i < kept; ++i) {
    (values[i] > 0 ? positive : negative) += std::fabs(values[i]);
    largest = std::max<double>(largest, std::fabs(values[i]));
  }
  double top = in.scale * std::max(up * positive + down * negative, up * negative + down * positive) + std::fabs(bias);
  double unit = largest * in.scale * kOne / kMost;
  double added = 0.0;
  if (conv.added >= 0) {
    const NetValue& other = values_[conv.added];
    added = other.scale;
    top += added * std::max(most - other.zero, other.zero);
    unit = std::max(unit, added * kOne / kMost);
  }
  // Every product is rounded to a whole unit.
  const double rounding = std::min<double>(0.5 * static_cast<double>(kept) + 4.0, kMost / 2);
  unit = std::max({unit, top / (kMost - rounding), 1e-30});
  *factor = static_cast<float>(in.scale * kOne / unit);
  return {twice(static_cast<float>(bias / unit)), twice(static_cast<float>(added * kOne / unit)),
          static_cast<float>(unit / values_[conv.to].scale)};
}

void ConvNet::pack_planes(Step& step, const KeptWeight& weight) const {
  const NetConv& conv = step.conv;
  const LaneShape& shape = shape_of(conv.from);
  const auto num_positions = static_cast<int64_t>(conv.positions.size());
  const int64_t element = int8_ ? 2 : 4, channels = values_[conv.from].channels / conv.phases;
  if (values_[conv.from].channels * shape.plane() * element > std::numeric_limits<int32_t>::max())
    throw std::invalid_argument("conv net: images are too large");
  const int64_t fitting = std::max<int64_t>(kMaxBlockBytes / tile_bytes(conv, shape.pitch(), element), 1);
  PlaneLayout& layout = step.planes;
  layout.rows = weight.rows;
  layout.num_blocks = (channels + fitting - 1) / fitting;
  const int64_t block_columns = (channels + layout.num_blocks - 1) / layout.num_blocks * num_positions;
  std::vector<std::vector<PlaneWeight>> blocks(layout.num_blocks);
  layout.starts.assign(layout.num_blocks * (weight.rows + 1), 0);
  const float* value = weight.values;
  std::vector<int64_t> columns;
  for (int64_t r = 0; r < weight.rows; ++r) {
    columns.clear();
    for (int64_t k = 0; k < weight.columns; ++k)
      if (weight.keeps(r, k)) columns.push_back(k);
    float factor = 1.0f;
    PlaneRule rule = {bits_of(step.bias[r]), 0, 1.0f};
    if (int8_) rule = plane_rule(conv, value, static_cast<int64_t>(columns.size()), step.bias[r], &factor);
    layout.rules.push_back(rule);
    for (const int64_t k : columns) {
      const NetPosition& at = conv.positions[k % num_positions];
      const int64_t pixel = (k / num_positions * conv.phases + at.phase) * shape.plane() + at.rows * shape.pitch() + at.columns;
      const float v = *value++;
      blocks[k / block_columns].push_back({static_cast<int32_t>(pixel * element), int8_ ? twice(v * factor) : bits_of(v)});
    }
    for (int64_t b = 0; b < layout.num_blocks; ++b)
      layout.starts[b * (weight.rows + 1) + r + 1] = static_cast<int64_t>(blocks[b].size());
  }
  for (int64_t b = 0; b < layout.num_blocks; ++b) {
    for (int64_t r = 0; r <= weight.rows; ++r) layout.starts[b * (weight.rows + 1) + r] += layout.kept;
    layout.kept += static_cast<int64_t>(blocks[b].size());
    layout.weights.insert(layout.weights.end(), blocks[b].begin(), blocks[b].end());
  }
}

}  // namespace gossamer
