// SPDX-License-Identifier: Apache-2.0
// How a row of weights becomes int8, for every layout.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace gossamer {

struct RowCodes {
  float scale = 1.0f;
  double inverse = 0.0;

  RowCodes(const float* values, int64_t count) {
    float top = 0.0f;
    for (int64_t i = 0; i < count; ++i) top = std::max(top, std::fabs(values[i]));
    if (top <= 0.0f) return;
    scale = static_cast<float>(double(top) / 127);
    inverse = 127 / double(top);
  }
  int8_t of(float value) const { return static_cast<int8_t>(std::lrint(value * inverse)); }
};

}  // namespace gossamer
