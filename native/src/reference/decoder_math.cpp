// SPDX-License-Identifier: Apache-2.0
// The specification of what a decoder computes between its weights: plain loops, sums in double.
#include "gossamer/decoder_math.hpp"

#include <algorithm>
#include <cmath>

namespace gossamer::reference {
namespace {

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  double squares = 0.0;
  for (int64_t i = 0; i < n; ++i) squares += double(x[i]) * x[i];
  const double factor = 1.0 / std::sqrt(squares / double(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i] * factor * weight[i]);
}

void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* y) {
  double total = 0.0, squares = 0.0;
  for (int64_t i = 0; i < n; ++i) total += x[i];
  const double mean = total / double(n);
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double factor = 1.0 / std::sqrt(squares / double(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>((x[i] - mean) * factor * weight[i] + bias[i]);
}

void add(const float* x, int64_t n, float scale, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i] * scale;
}

void rotate(const float* head, int64_t dim, int64_t pairs, const float* cosines, const float* sines, float scale,
            float* y) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = head[i], b = head[i + pairs];
    y[i] = (a * cosines[i] - b * sines[i]) * scale;
    y[i + pairs] = (b * cosines[i] + a * sines[i]) * scale;
  }
  for (int64_t i = 2 * pairs; i < dim; ++i) y[i] = head[i] * scale;
}

double activated(DecoderActivation activation, double v) {
  switch (activation) {
    case DecoderActivation::silu: return v / (1.0 + std::exp(-v));
    case DecoderActivation::gelu_tanh:
      return 0.5 * v * (1.0 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    case DecoderActivation::gelu: return 0.5 * v * std::erfc(-v * 0.7071067811865476);
    case DecoderActivation::relu: return v < 0.0 ? 0.0 : v;  // keeps NaN
  }
  return v;
}

void gate(DecoderActivation activation, const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(activated(activation, gate[i]) * (up ? up[i] : 1.0f));
}

double capped(double score, float cap) { return cap == 0.0f ? score : cap * std::tanh(score / cap); }

void scale_and_cap(float* x, int64_t n, float scale, float limit) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(capped(double(x[i]) * scale, limit));
}

}  // namespace

const DecoderMath decoder_math = {rms_norm, layer_norm, add, rotate, gate, scale_and_cap};

}  // namespace gossamer::reference
