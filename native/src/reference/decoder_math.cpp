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

void add(const float* x, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

void rotate(const float* head, int64_t dim, const float* cosines, const float* sines, float scale, float* y) {
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float a = head[i], b = head[i + dim / 2];
    y[i] = (a * cosines[i] - b * sines[i]) * scale;
    y[i + dim / 2] = (b * cosines[i] + a * sines[i]) * scale;
  }
}

void gate(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void attend(const AttendCall& call) {
  const int64_t stride = (call.positions + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  for (int64_t g = 0; g < call.group; ++g) {
    const float* query = call.queries + g * call.padded_dim;
    float* scores = call.scores + g * stride;
    double largest = -INFINITY, total = 0.0;
    for (int64_t p = 0; p < call.positions; ++p) {
      double score = 0.0;
      for (int64_t d = 0; d < call.padded_dim; ++d)
        score += double(query[d]) * call.keys[(p / kKeyBlock * call.padded_dim + d) * kKeyBlock + p % kKeyBlock];
      scores[p] = static_cast<float>(score);
      largest = std::max(largest, score);
    }
    for (int64_t p = 0; p < call.positions; ++p) {
      scores[p] = static_cast<float>(std::exp(scores[p] - largest));
      total += scores[p];
    }
    for (int64_t d = 0; d < call.padded_dim; ++d) {
      double sum = 0.0;
      for (int64_t p = 0; p < call.positions; ++p) sum += double(scores[p]) * call.values[p * call.padded_dim + d];
      call.out[g * call.padded_dim + d] = static_cast<float>(sum / total);
    }
  }
}

}  // namespace

const DecoderMath decoder_math = {rms_norm, add, rotate, gate, attend};

}  // namespace gossamer::reference
