// SPDX-License-Identifier: Apache-2.0
// One call of y = act(x W^T + bias): what every kernel family is asked to do.
#pragma once
#include <cstdint>

namespace gossamer {

enum class Activation : int { none = 0, relu = 1, gelu = 2, silu = 3 };

struct LinearCall {
  const float* x;
  int64_t tokens, x_stride;
  float* y;
  int64_t y_stride;
  const float* bias;  // may be null
  Activation activation;
};

}  // namespace gossamer
