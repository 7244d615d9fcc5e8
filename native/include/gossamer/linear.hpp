// SPDX-License-Identifier: Apache-2.0
// One call of y = act(x W^T + bias): what every kernel family is asked to do.
#pragma once
#include <cstdint>

namespace gossamer {

// quick_gelu is v sigmoid(1.702 v), gelu_tanh the form of GELU with a tanh.
enum class Activation : int { none = 0, relu = 1, gelu = 2, silu = 3, quick_gelu = 4, gelu_tanh = 5 };
constexpr int kNumActivations = 6;

struct LinearCall {
  const float* x;
  int64_t tokens, x_stride;
  float* y;
  int64_t y_stride;
  const float* bias;  // may be null
  Activation activation;
};

}  // namespace gossamer
