// SPDX-License-Identifier: Apache-2.0
// The specification of the neuron kernels: plain loops, no intrinsics.
#include "gossamer/neurons.hpp"

#include "gossamer/bf16.hpp"

namespace gossamer::reference {
namespace {

float weight_at(const NeuronRows& rows, const NeuronView& view, int64_t neuron, int64_t k) {
  const int64_t at = neuron * view.stride + k;
  return rows.fp32 ? rows.fp32[at] : rows.bf16 ? from_bf16(rows.bf16[at]) : rows.scales[neuron] * rows.int8[at];
}

float dot(const NeuronRows& rows, const NeuronView& view, int64_t neuron, const float* x) {
  float sum = 0.0f;
  for (int64_t k = 0; k < view.features; ++k) sum += weight_at(rows, view, neuron, k) * x[k];
  return sum;
}

// Sum of (code + 8) x over a plane's row, less 8 times the sum of x.
int32_t dot_plane(const uint16_t* plane, const NeuronView& view, int64_t neuron, const CodedInput& x) {
  const uint16_t* words = plane + neuron * view.code_words;
  int32_t sum = 0;
  for (int64_t k = 0; k < view.code_words * 4; ++k) {
    const int64_t inside = k % kCodeGroup;
    sum += (words[k / kCodeGroup * 32 + inside % 32] >> (inside / 32 * 4) & 15) * x.values[k];
  }
  return sum - 8 * x.sum;
}

float from_codes(const NeuronView& view, const CodedInput& x, int64_t i) {
  return screen_both(view, x, i, dot_plane(view.high, view, i, x), dot_plane(view.low, view, i, x));
}

int64_t screen(const NeuronView& view, const CodedInput& x, int64_t first, int64_t last, int32_t* candidates, float* g) {
  int64_t count = 0;
  for (int64_t i = first; i < last; ++i) {
    const float g_high = screen_high(view, x, i, dot_plane(view.high, view, i, x));
    if (g_high + screen_error(view, x, i, view.high_errors) <= view.threshold) continue;
    const float both = from_codes(view, x, i);
    if (both + screen_error(view, x, i, view.low_errors) <= view.threshold) continue;
    candidates[count] = static_cast<int32_t>(i);
    g[count++] = both;
  }
  return count;
}

int64_t add(const NeuronView& view, const float* x, const CodedInput& coded, const int32_t* candidates, const float* known,
            int64_t count, int32_t* numbers, float* y) {
  int64_t active = 0;
  for (int64_t c = 0; c < count; ++c) {
    const int64_t i = candidates[c];
    const float g = view.gate    ? dot(view.gate, view, i, x) + (view.gate_bias ? view.gate_bias[i] : 0.0f)
                    : known ? known[c]
                            : from_codes(view, coded, i);
    if (g <= view.threshold) continue;
    numbers[active++] = static_cast<int32_t>(i);
    float h = g - view.shift;
    if (view.power == 2) h *= h;
    if (view.up) h *= dot(view.up, view, i, x) + (view.up_bias ? view.up_bias[i] : 0.0f);
    for (int64_t k = 0; k < view.features; ++k) y[k] += h * weight_at(view.down, view, i, k);
  }
  return active;
}

}  // namespace

const NeuronKernels neuron_kernels = {screen, add};

}  // namespace gossamer::reference
