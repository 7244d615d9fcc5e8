// SPDX-License-Identifier: Apache-2.0
// The kernels of neurons.hpp, once, over the vectors of panel_vec256.hpp and panel_vec512.hpp. Of V they also need
//   V::loadu(const uint16_t*), V::loadu(const int8_t*)   bf16 and codes as floats,
//   V::total(Type)                   the sum of all lanes,
//   V::dot_codes(const int8_t*, const int16_t*, int64_t count)   a multiple of 64 products, exact,
//   V::dot_nibbles(const uint16_t*, const int16_t*, int64_t words)   four products a word, exact.
#pragma once
#include "gossamer/neurons.hpp"
#include "simd/panel_kernel.hpp"

namespace gossamer {

// Rows are far apart: the next one is asked for while this one is used.
template <class Value>
void ask_row(const Value* row, int64_t count) {
  constexpr int64_t kFirst = 2048;  // bytes; the hardware goes on from there
  for (int64_t byte = 0; byte < kFirst && byte < count * static_cast<int64_t>(sizeof(Value)); byte += 64)
    _mm_prefetch(reinterpret_cast<const char*>(row) + byte, _MM_HINT_T0);
}

template <class V>
int32_t neuron_plane(const uint16_t* plane, const NeuronView& view, const CodedInput& x, int64_t neuron) {
  return V::dot_nibbles(plane + neuron * view.code_words, x.values, view.code_words) - 8 * x.sum;
}

template <class V>
int64_t neuron_screen(const NeuronView& view, const CodedInput& x, int64_t first, int64_t last, int32_t* candidates,
                      float* g) {
  int64_t count = 0, found = 0;
  for (int64_t i = first; i < last; ++i) {
    const int32_t high = neuron_plane<V>(view.high, view, x, i);
    candidates[count] = static_cast<int32_t>(i);
    __builtin_memcpy(g + count, &high, sizeof high);
    // NaN is a candidate: it has to show in y.
    count += !(screen_high(view, x, i, high) + screen_error(view, x, i, view.high_errors) <= view.threshold);
  }
  for (int64_t c = 0; c < count; ++c) {
    constexpr int64_t kAhead = 4;
    if (c + kAhead < count) ask_row(view.low + candidates[c + kAhead] * view.code_words, view.code_words);
    const int64_t i = candidates[c];
    int32_t high;
    __builtin_memcpy(&high, g + c, sizeof high);
    const float both = screen_both(view, x, i, high, neuron_plane<V>(view.low, view, x, i));
    candidates[found] = static_cast<int32_t>(i);
    g[found] = both;
    found += !(both + screen_error(view, x, i, view.low_errors) <= view.threshold);
  }
  return found;
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

// What rows of floats and of codes differ in.
template <class V, class Value>
struct FloatRows {
  const Value *gate, *up, *down;
  const NeuronView& view;
  const float* x;

  void ask_gate(int64_t i) const { ask_row(gate + i * view.stride, view.features); }
  float gate_of(int64_t i, const float*) const { return dot(gate, i) + (view.gate_bias ? view.gate_bias[i] : 0.0f); }
  float up_of(int64_t i) const { return dot(up, i); }
  void add_down(float h, int64_t i, float* y) const { neuron_axpy<V>(h, down + i * view.stride, y, view.features); }
  float dot(const Value* rows, int64_t i) const { return neuron_dot<V>(rows + i * view.stride, x, view.features); }
};

template <class V>
struct CodeRows {
  const int8_t *up, *down;
  const NeuronView& view;
  const CodedInput& x;

  void ask_gate(int64_t) const {}
  float gate_of(int64_t i, const float* known) const {
    return known ? *known
                 : screen_both(view, x, i, neuron_plane<V>(view.high, view, x, i),
                                     neuron_plane<V>(view.low, view, x, i));
  }
  float up_of(int64_t i) const {
    const int32_t sum = V::dot_codes(up + i * view.stride, x.values, view.stride);
    return static_cast<float>(sum) * (x.scale * view.up.scales[i]);
  }
  void add_down(float h, int64_t i, float* y) const {
    neuron_axpy<V>(h * view.down.scales[i], down + i * view.stride, y, view.features);
  }
};

template <class Rows>
int64_t add_neurons(const NeuronView& view, const Rows& rows, const int32_t* candidates, const float* known, int64_t count,
                    int32_t* numbers, float* y) {
  int64_t active = 0;
  for (int64_t c = 0; c < count; ++c) {
    const int64_t i = candidates[c];
    ask_row(rows.down + i * view.stride, view.features);
    if (c + 1 < count) {
      rows.ask_gate(candidates[c + 1]);
      if (rows.up) ask_row(rows.up + candidates[c + 1] * view.stride, view.features);
    }
    const float g = rows.gate_of(i, known ? known + c : nullptr);
    if (g <= view.threshold) continue;
    numbers[active++] = static_cast<int32_t>(i);
    float h = g - view.shift;
    if (view.power == 2) h *= h;
    if (rows.up) h *= rows.up_of(i) + (view.up_bias ? view.up_bias[i] : 0.0f);
    rows.add_down(h, i, y);
  }
  return active;
}

template <class V>
int64_t neuron_add(const NeuronView& view, const float* x, const CodedInput& coded, const int32_t* candidates,
                   const float* g, int64_t count, int32_t* active, float* y) {
  const auto with = [&](const auto& rows) { return add_neurons(view, rows, candidates, g, count, active, y); };
  if (view.down.fp32) return with(FloatRows<V, float>{view.gate.fp32, view.up.fp32, view.down.fp32, view, x});
  if (view.down.bf16) return with(FloatRows<V, uint16_t>{view.gate.bf16, view.up.bf16, view.down.bf16, view, x});
  return with(CodeRows<V>{view.up.int8, view.down.int8, view, coded});
}

}  // namespace gossamer
