// SPDX-License-Identifier: Apache-2.0
// One stored value of a FewView, without regard to speed.
#pragma once
#include <cstring>

#include "gossamer/bf16.hpp"
#include "gossamer/few.hpp"

namespace gossamer {

// The stored value i, without its scale.
inline float stored_value(const FewView& view, int64_t i) {
  switch (view.type) {
    case ValueType::fp32: {
      float v;
      std::memcpy(&v, view.values + 4 * i, sizeof v);
      return v;
    }
    case ValueType::bf16: {
      uint16_t half;
      std::memcpy(&half, view.values + 2 * i, sizeof half);
      return from_bf16(half);
    }
    case ValueType::int8: return static_cast<int8_t>(view.values[i]);
    case ValueType::int4: break;
  }
  const int nibble = view.values[i / 2] >> (i % 2 * 4) & 15;
  return static_cast<float>(nibble < 8 ? nibble : nibble - 16);
}

inline float scale_of(const FewView& view, int64_t index) {
  return view.type == ValueType::int4 ? from_bf16(view.scales[index]) : 1.0f;
}

}  // namespace gossamer
