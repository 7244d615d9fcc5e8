// SPDX-License-Identifier: Apache-2.0
// The specification of the neuron kernels: plain loops, no intrinsics.
#include "gossamer/neurons.hpp"

#include "gossamer/bf16.hpp"

namespace gossamer::reference {
namespace {

float weight_at(const float* whole, const uint16_t* half, int64_t i) { return whole ? whole[i] : from_bf16(half[i]); }

float dot(const float* whole, const uint16_t* half, const NeuronView& view, int64_t neuron, const float* x) {
  float sum = 0.0f;
  for (int64_t k = 0; k < view.features; ++k) sum += weight_at(whole, half, neuron * view.features + k) * x[k];
  return sum;
}

int64_t screen(const NeuronView& view, const CodedInput& x, int64_t first, int64_t last, int32_t* candidates) {
  int64_t count = 0;
  for (int64_t i = first; i < last; ++i) {
    int32_t sum = 0;
    for (int64_t k = 0; k < view.code_stride; ++k) sum += view.codes[i * view.code_stride + k] * x.values[k];
    const float g = static_cast<float>(sum) * x.scale * view.code_scales[i] + (view.gate_bias ? view.gate_bias[i] : 0.0f);
    if (!(g + screen_error(view, x, i) <= view.shift)) candidates[count++] = static_cast<int32_t>(i);
  }
  return count;
}

int64_t add(const NeuronView& view, const float* x, const int32_t* candidates, int64_t count, float* y) {
  int64_t active = 0;
  for (int64_t c = 0; c < count; ++c) {
    const int64_t i = candidates[c];
    const float g = dot(view.gate, view.gate_bf16, view, i, x) + (view.gate_bias ? view.gate_bias[i] : 0.0f) - view.shift;
    if (g <= 0.0f) continue;
    ++active;
    float h = view.power == 2 ? g * g : g;
    if (view.up || view.up_bf16)
      h *= dot(view.up, view.up_bf16, view, i, x) + (view.up_bias ? view.up_bias[i] : 0.0f);
    for (int64_t k = 0; k < view.features; ++k) y[k] += h * weight_at(view.down, view.down_bf16, i * view.features + k);
  }
  return active;
}

}  // namespace

const NeuronKernels neuron_kernels = {screen, add};

}  // namespace gossamer::reference
