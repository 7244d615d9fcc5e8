// SPDX-License-Identifier: Apache-2.0
// Norms, rotation, gate and attention of a decoder over vectors of L floats. The compiler's own vectors:
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

  // Scores of one block of positions for G heads that share the keys.
  template <int G>
  static void block_scores(const float* queries, const float* keys, int64_t dim, int64_t stride, float* scores) {
    constexpr int kVectors = kKeyBlock / L;
    V acc[G][kVectors];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[g][v] = zero();
    for (int64_t d = 0; d < dim; ++d) {
      V k[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) k[v] = load(keys + d * kKeyBlock + v * L);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[g][v] += k[v] * queries[g * dim + d];
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store(scores + g * stride + v * L, acc[g][v]);
  }

  // Scores to weights that add up to the number returned; a multiple of L of them, -inf behind the last.
  static float exponentials(float* scores, int64_t count) {
    float largest = scores[0];
    V top = load(scores);
    for (int64_t i = L; i < count; i += L) {
      const V v = load(scores + i);
      top = v > top ? v : top;
    }
    for (int i = 0; i < L; ++i) largest = top[i] > largest ? top[i] : largest;
    V total = zero();
    for (int64_t i = 0; i < count; i += L) {
      float e[L];
      for (int j = 0; j < L; ++j) e[j] = exp_poly(scores[i + j] - largest);
      std::memcpy(scores + i, e, sizeof e);
      total += load(e);
    }
    return sum(total);
  }

  // NV vectors of the values of all positions, weighted, for G heads.
  template <int G, int NV>
  static void weighted_values(const AttendCall& call, const float* scores, int64_t stride, int64_t column,
                              const float* factors, float* out) {
    V acc[G][NV];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[g][v] = zero();
    const float* values = call.values + call.skipped * call.padded_dim + column;
    for (int64_t p = call.skipped; p < call.positions; ++p, values += call.padded_dim) {
      V row[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) row[v] = load(values + v * L);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[g][v] += row[v] * scores[g * stride + p];
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) store(out + g * call.padded_dim + column + v * L, acc[g][v] * factors[g]);
  }

  template <int G>
  static void attend_heads(const AttendCall& call, int64_t first) {
    constexpr int kWide = L == 16 ? 4 : 2;
    const int64_t blocks = (call.positions + kKeyBlock - 1) / kKeyBlock, stride = blocks * kKeyBlock;
    const float* queries = call.queries + first * call.padded_dim;
    float* scores = call.scores + first * stride;
    float* out = call.out + first * call.padded_dim;
    for (int64_t b = 0; b < blocks; ++b)
      block_scores<G>(queries, call.keys + b * call.padded_dim * kKeyBlock, call.padded_dim, stride,
                      scores + b * kKeyBlock);
    float factors[G];
    for (int g = 0; g < G; ++g) {
      if (call.cap != 0.0f) scale_and_cap(scores + g * stride, call.positions, 1.0f, call.cap);
      for (int64_t p = 0; p < call.skipped; ++p) scores[g * stride + p] = -__builtin_inff();
      for (int64_t p = call.positions; p < stride; ++p) scores[g * stride + p] = -__builtin_inff();
      factors[g] = 1.0f / exponentials(scores + g * stride, stride);
    }
    int64_t column = 0;
    for (; column + kWide * L <= call.padded_dim; column += kWide * L)
      weighted_values<G, kWide>(call, scores, stride, column, factors, out);
    for (; column < call.padded_dim; column += L) weighted_values<G, 1>(call, scores, stride, column, factors, out);
  }

  static void attend(const AttendCall& call) {
    int64_t first = 0;
    for (; first + 3 <= call.group; first += 3) attend_heads<3>(call, first);
    if (call.group - first == 2) attend_heads<2>(call, first);
    if (call.group - first == 1) attend_heads<1>(call, first);
  }

  static constexpr DecoderMath math() { return {rms_norm, layer_norm, add, rotate, gate, scale_and_cap, attend}; }
};

}  // namespace
}  // namespace gossamer
