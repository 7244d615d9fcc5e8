// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gossamer/bf16.hpp"
#include "gossamer/few_layout.hpp"

namespace gossamer {
namespace {

int quantised(float v, float scale, int lowest, int highest) {
  if (scale == 0.0f) return 0;
  return std::clamp(static_cast<int>(std::nearbyint(std::clamp(v / scale, -1e4f, 1e4f))), lowest, highest);
}

std::vector<float> largest_by_scale(const StoredValues& stored) {
  std::vector<float> largest(static_cast<size_t>(stored.num_scales), 0.0f);
  for (size_t i = 0; i < stored.values.size(); ++i) {
    float& m = largest[stored.scale_ids[i]];
    m = std::max(m, std::fabs(stored.values[i]));
  }
  return largest;
}

void encode_int8(const StoredValues& stored, FewLayout& layout) {
  layout.row_scales = largest_by_scale(stored);
  for (float& scale : layout.row_scales) scale /= 127.0f;
  for (size_t i = 0; i < stored.values.size(); ++i)
    layout.values[i] = static_cast<uint8_t>(
        quantised(stored.values[i], layout.row_scales[stored.scale_ids[i]], -127, 127));
}

void encode_int4(const StoredValues& stored, FewLayout& layout) {
  for (const float largest : largest_by_scale(stored)) layout.scales.push_back(to_bf16(largest / 7.0f));
  for (size_t i = 0; i < stored.values.size(); ++i) {
    const int q = quantised(stored.values[i], from_bf16(layout.scales[stored.scale_ids[i]]), -8, 7);
    layout.values[i / 2] |= static_cast<uint8_t>((q & 15) << (i % 2 * 4));
  }
}

}  // namespace

void encode_values(const StoredValues& stored, FewLayout& layout) {
  const size_t count = stored.values.size();
  switch (layout.view.type) {
    case ValueType::fp32:
      layout.values.assign(count * 4 + kFewSpareBytes, 0);
      if (count) std::memcpy(layout.values.data(), stored.values.data(), count * 4);
      return;
    case ValueType::bf16:
      layout.values.assign(count * 2 + kFewSpareBytes, 0);
      for (size_t i = 0; i < count; ++i) {
        const uint16_t half = to_bf16(stored.values[i]);
        std::memcpy(layout.values.data() + 2 * i, &half, 2);
      }
      return;
    case ValueType::int8:
      layout.values.assign(count + kFewSpareBytes, 0);
      return encode_int8(stored, layout);
    case ValueType::int4:
      layout.values.assign((count + 1) / 2 + kFewSpareBytes, 0);
      return encode_int4(stored, layout);
  }
}

}  // namespace gossamer
