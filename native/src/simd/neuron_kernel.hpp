// SPDX-License-Identifier: Apache-2.0
// The kernels of neurons.hpp, once, over the vectors of panel_vec256.hpp and panel_vec512.hpp. Of V they also need
//   V::loadu(const uint16_t*)        bf16 as floats,
//   V::total(Type)                   the sum of all lanes,
//   V::dot_codes(const int8_t*, const int16_t*, int64_t count)   a multiple of 64 products, exact.
#pragma once
#include "gossamer/neurons.hpp"
#include "simd/panel_kernel.hpp"

namespace gossamer {

template <class V>
int64_t neuron_screen(const NeuronView& view, const CodedInput& x, int64_t first, int64_t last, int32_t* candidates) {
  int64_t count = 0;
  for (int64_t i = first; i < last; ++i) {
    const int32_t sum = V::dot_codes(view.codes + i * view.code_stride, x.values, view.code_stride);
    const float g = static_cast<float>(sum) * x.scale * view.code_scales[i] + (view.gate_bias ? view.gate_bias[i] : 0.0f);
    candidates[count] = static_cast<int32_t>(i);
    count += !(g + screen_error(view, x, i) <= view.shift);  // NaN is a candidate: it has to show in y
  }
  return count;
}

template <class V, class Value>
float neuron_dot(const Value* w, const float* x, int64_t count) {
  typename V::Type sum[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t k = 0;
  for (; k + 4 * V::kLanes <= count; k += 4 * V::kLanes)
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q)
      sum[q] = V::fma(V::loadu(w + k + q * V::kLanes), V::loadu(x + k + q * V::kLanes), sum[q]);
  for (; k + V::kLanes <= count; k += V::kLanes) sum[0] = V::fma(V::loadu(w + k), V::loadu(x + k), sum[0]);
  float total = V::total(V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
  for (; k < count; ++k) total += V::one(w + k) * x[k];
  return total;
}

template <class V, class Value>
void neuron_axpy(float a, const Value* w, float* y, int64_t count) {
  const auto factor = V::all(a);
  int64_t k = 0;
  for (; k + V::kLanes <= count; k += V::kLanes) V::storeu(y + k, V::fma(factor, V::loadu(w + k), V::loadu(y + k)));
  for (; k < count; ++k) y[k] += a * V::one(w + k);
}

// Rows are far apart: the next candidate's are asked for while this one is used.
template <class Value>
void ask_row(const Value* row, int64_t count) {
  constexpr int64_t kFirst = 1024;  // bytes; the hardware goes on from there
  for (int64_t byte = 0; byte < kFirst && byte < count * static_cast<int64_t>(sizeof(Value)); byte += 64)
    _mm_prefetch(reinterpret_cast<const char*>(row) + byte, _MM_HINT_T0);
}

template <class V, class Value>
int64_t add_neurons(const NeuronView& view, const Value* gate, const Value* up, const Value* down, const float* x,
                    const int32_t* candidates, int64_t count, float* y) {
  int64_t active = 0;
  for (int64_t c = 0; c < count; ++c) {
    const int64_t i = candidates[c], at = i * view.features;
    ask_row(down + at, view.features);
    if (c + 1 < count) {
      ask_row(gate + candidates[c + 1] * view.features, view.features);
      if (up) ask_row(up + candidates[c + 1] * view.features, view.features);
    }
    const float g = neuron_dot<V>(gate + at, x, view.features) + (view.gate_bias ? view.gate_bias[i] : 0.0f) - view.shift;
    if (g <= 0.0f) continue;
    ++active;
    float h = view.power == 2 ? g * g : g;
    if (up) h *= neuron_dot<V>(up + at, x, view.features) + (view.up_bias ? view.up_bias[i] : 0.0f);
    neuron_axpy<V>(h, down + at, y, view.features);
  }
  return active;
}

template <class V>
int64_t neuron_add(const NeuronView& view, const float* x, const int32_t* candidates, int64_t count, float* y) {
  return view.gate ? add_neurons<V>(view, view.gate, view.up, view.down, x, candidates, count, y)
                   : add_neurons<V>(view, view.gate_bf16, view.up_bf16, view.down_bf16, x, candidates, count, y);
}

}  // namespace gossamer
