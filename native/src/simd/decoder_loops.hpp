// SPDX-License-Identifier: Apache-2.0
// Norm, rotation, gate and attention of a decoder over vectors of L floats. The compiler's own vectors:
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

  static void add(const float* x, int64_t n, float* sum) {
    for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
  }

  static void rotate(const float* head, int64_t dim, const float* cosines, const float* sines, float scale, float* y) {
    const int64_t half = dim / 2;
    for (int64_t i = 0; i < half; ++i) y[i] = (head[i] * cosines[i] - head[i + half] * sines[i]) * scale;
    for (int64_t i = 0; i < half; ++i) y[i + half] = (head[i + half] * cosines[i] + head[i] * sines[i]) * scale;
  }

  static void gate(const float* gate, const float* up, int64_t n, float* y) {
    for (int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + exp_poly(-gate[i])) * up[i];
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
    const float* values = call.values + column;
    for (int64_t p = 0; p < call.positions; ++p, values += call.padded_dim) {
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

  static constexpr DecoderMath math() { return {rms_norm, add, rotate, gate, attend}; }
};

}  // namespace
}  // namespace gossamer
