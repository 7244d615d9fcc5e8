// SPDX-License-Identifier: Apache-2.0
// Norms, rotation and gate of a decoder over vectors of L floats. The compiler's own vectors:
// there is nothing here that one instruction set says differently.
#pragma once
#include <cstring>

#include "gossamer/decoder_math.hpp"
#include "simd/activation.hpp"

namespace gossamer {
namespace {

struct Eight {
  typedef float Type __attribute__((vector_size(32)));
};
struct Sixteen {
  typedef float Type __attribute__((vector_size(64)));
};

template <class Width>
struct Loops {
  using V = typename Width::Type;
  static constexpr int L = sizeof(V) / 4;

  static V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
  static V zero() { return V{}; }
  static float sum(V v) {
    float total = 0.0f;
    for (int i = 0; i < L; ++i) total += v[i];
    return total;
  }

  static void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
    V squares[2] = {zero(), zero()};
    int64_t i = 0;
    for (; i + 2 * L <= n; i += 2 * L) {
      const V a = load(x + i), b = load(x + i + L);
      squares[0] += a * a;
      squares[1] += b * b;
    }
    float total = sum(squares[0] + squares[1]);
    for (; i < n; ++i) total += x[i] * x[i];
    const float factor = 1.0f / __builtin_sqrtf(total / static_cast<float>(n) + eps);
    for (i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
  }

  static void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* y) {
    V sums = zero();
    int64_t i = 0;
    for (; i + L <= n; i += L) sums += load(x + i);
    float total = sum(sums);
    for (; i < n; ++i) total += x[i];
    const float mean = total / static_cast<float>(n);
    // The squares of what is left of the mean, and not of x: those would cancel.
    sums = zero();
    for (i = 0; i + L <= n; i += L) {
      const V v = load(x + i) - mean;
      sums += v * v;
    }
    total = sum(sums);
    for (; i < n; ++i) total += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / __builtin_sqrtf(total / static_cast<float>(n) + eps);
    for (i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * weight[i] + bias[i];
  }

  static void add(const float* x, int64_t n, float scale, float* sum) {
    for (int64_t i = 0; i < n; ++i) sum[i] += x[i] * scale;
  }

  static void rotate(const float* head, int64_t dim, int64_t pairs, const float* cosines, const float* sines,
                     float scale, float* y) {
    for (int64_t i = 0; i < pairs; ++i) y[i] = (head[i] * cosines[i] - head[i + pairs] * sines[i]) * scale;
    for (int64_t i = 0; i < pairs; ++i) y[i + pairs] = (head[i + pairs] * cosines[i] + head[i] * sines[i]) * scale;
    for (int64_t i = 2 * pairs; i < dim; ++i) y[i] = head[i] * scale;
  }

  template <class F>
  static void gate_with(F activated, const float* gate, const float* up, int64_t n, float* y) {
    if (up)
      for (int64_t i = 0; i < n; ++i) y[i] = activated(gate[i]) * up[i];
    else
      for (int64_t i = 0; i < n; ++i) y[i] = activated(gate[i]);
  }

  static void gate(DecoderActivation activation, const float* gate, const float* up, int64_t n, float* y) {
    switch (activation) {
      case DecoderActivation::silu:
        return gate_with([](float v) { return v / (1.0f + exp_poly(-v)); }, gate, up, n, y);
      case DecoderActivation::gelu_tanh:  // 1 + tanh(u) = 2 / (1 + e^-2u)
        return gate_with([](float v) { return v / (1.0f + exp_poly(-1.59576912f * (v + 0.044715f * v * v * v))); },
                         gate, up, n, y);
      case DecoderActivation::gelu:
        return gate_with([](float v) { return 0.5f * v * (1.0f + erf_poly(v * 0.70710678f)); }, gate, up, n, y);
      case DecoderActivation::relu:
        return gate_with([](float v) { return v < 0.0f ? 0.0f : v; }, gate, up, n, y);  // keeps NaN
    }
  }

  static void scale_and_cap(float* x, int64_t n, float scale, float limit) {
    for (int64_t i = 0; i < n; ++i) x[i] *= scale;
    if (limit == 0.0f) return;
    const float inverse = 1.0f / limit;
    for (int64_t i = 0; i < n; ++i) x[i] = limit * tanh_poly(x[i] * inverse);
  }

  static constexpr DecoderMath math() { return {rms_norm, layer_norm, add, rotate, gate, scale_and_cap}; }
};

}  // namespace
}  // namespace gossamer
