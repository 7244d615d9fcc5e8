// SPDX-License-Identifier: Apache-2.0
// Activations as the reference kernels apply them: one value at a time, libm.
#pragma once
#include <cmath>

#include "gossamer/linear.hpp"

namespace gossamer::reference {

static inline float activate(float v, Activation activation) {
  switch (activation) {
    case Activation::relu: return v < 0.0f ? 0.0f : v;
    case Activation::gelu: return 0.5f * v * (1.0f + std::erf(v * 0.70710678118654752f));
    case Activation::silu: return v / (1.0f + std::exp(-v));
    case Activation::quick_gelu: return v / (1.0f + std::exp(-1.702f * v));
    case Activation::gelu_tanh: return v / (1.0f + std::exp(-1.5957691216f * (v + 0.044715f * v * v * v)));
    case Activation::none: break;
  }
  return v;
}

}  // namespace gossamer::reference
