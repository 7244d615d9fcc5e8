// SPDX-License-Identifier: Apache-2.0
// The plain form: one number after the other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kv.hpp"

namespace gossamer::reference {
namespace {

int32_t half_of(const char* page, int64_t byte, int64_t is_high) {
  return reinterpret_cast<const uint8_t*>(page)[byte] >> (is_high ? 4 : 0) & 15;
}

// Codes of a page, above those of 0.
int32_t key_code(KvType type, const char* page, int64_t lane, int64_t d) {
  if (type == KvType::int4) return half_of(page, (d / 8 * kPage + lane) * 4 + d % 4, d / 4 % 2) - 8;
  return reinterpret_cast<const uint8_t*>(page)[(d / 4 * kPage + lane) * 4 + d % 4] - 128;
}

int32_t value_code(KvType type, const char* page, int64_t dim, int64_t lane, int64_t d) {
  if (type == KvType::int4) return half_of(page, lane / 8 * dim * 4 + d * 4 + lane % 4, lane / 4 % 2) - 8;
  return reinterpret_cast<const int8_t*>(page)[lane / 4 * dim * 4 + d * 4 + lane % 4];
}

void scores(KvType type, const KvQueries& q, const char* const* pages, int64_t count, float* scores, int64_t stride) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t g = 0; g < q.group; ++g)
      for (int64_t lane = 0; lane < kPage; ++lane) {
        float& to = scores[g * stride + i * kPage + lane];
        if (type == KvType::fp32) {
          const auto* const keys = reinterpret_cast<const float*>(pages[i]);
          double sum = 0.0;
          for (int64_t d = 0; d < q.dim; ++d) sum += double(keys[d * kPage + lane]) * q.floats[g * q.dim + d];
          to = static_cast<float>(sum);
        } else {
          int32_t sum = 0;
          for (int64_t d = 0; d < q.dim; ++d) sum += key_code(type, pages[i], lane, d) * q.codes[g * q.dim + d];
          to = static_cast<float>(sum) * (q.scales[g] * scales_of(type, pages[i], q.dim)[lane]);
        }
      }
}

void cap(float* scores, int64_t count, float cap) {
  for (int64_t i = 0; i < count; ++i) scores[i] = cap * std::tanh(scores[i] / cap);
}

float weigh(float* scores, int64_t count) {
  const float most = *std::max_element(scores, scores + count);
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += scores[i] = std::exp(scores[i] - most);
  return static_cast<float>(total);
}

// What a page adds to a head, by column.
void add_floats(KvType, const char* page, int64_t dim, const float* weights, double* sums) {
  for (int64_t lane = 0; lane < kPage; ++lane)
    for (int64_t d = 0; d < dim; ++d) sums[d] += double(weights[lane]) * reinterpret_cast<const float*>(page)[lane * dim + d];
}

void add_codes(KvType type, const char* page, int64_t dim, const float* weights, double* sums) {
  // Weights times the scales of their rows, as codes of 0 to 255.
  float scaled[kPage], most = 0.0f, poison = 0.0f;
  for (int64_t lane = 0; lane < kPage; ++lane) {
    scaled[lane] = weights[lane] * scales_of(type, page, dim)[lane];
    most = scaled[lane] > most ? scaled[lane] : most;
    poison += scaled[lane] * 0.0f;  // a number that is not finite shows
  }
  const float inverse = most > 0.0f ? 255.0f / most : 0.0f;
  for (int64_t d = 0; d < dim; ++d) {
    int32_t sum = 0;
    for (int64_t lane = 0; lane < kPage; ++lane)
      sum += static_cast<int32_t>(std::lrintf(scaled[lane] * inverse)) * value_code(type, page, dim, lane, d);
    sums[d] += static_cast<double>(sum) * (most / 255.0f + poison);
  }
}

void values(KvType type, int64_t group, int64_t dim, const char* const* pages, int64_t count, const float* weights,
            int64_t stride, const float* factors, char*, float* out) {
  for (int64_t g = 0; g < group; ++g) {
    double sums[kMostDim] = {};
    for (int64_t i = 0; i < count; ++i)
      (type == KvType::fp32 ? add_floats : add_codes)(type, pages[i], dim, weights + g * stride + i * kPage, sums);
    for (int64_t d = 0; d < dim; ++d) out[g * dim + d] = static_cast<float>(sums[d] * factors[g]);
  }
}

void key_rows(KvType type, const char* page, int64_t dim, float* rows) {
  for (int64_t lane = 0; lane < kPage; ++lane)
    for (int64_t d = 0; d < dim; ++d)
      rows[lane * dim + d] =
          type == KvType::fp32
              ? reinterpret_cast<const float*>(page)[d * kPage + lane]
              : static_cast<float>(key_code(type, page, lane, d)) * scales_of(type, page, dim)[lane];
}

void value_rows(KvType type, const char* page, int64_t dim, float* rows) {
  for (int64_t lane = 0; lane < kPage; ++lane)
    for (int64_t d = 0; d < dim; ++d)
      rows[lane * dim + d] =
          type == KvType::fp32
              ? reinterpret_cast<const float*>(page)[lane * dim + d]
              : static_cast<float>(value_code(type, page, dim, lane, d)) * scales_of(type, page, dim)[lane];
}

void spread(float* rows, int64_t count, int64_t dim) {
  const int64_t size = dim & -dim;
  std::vector<double> sums(static_cast<size_t>(size));
  for (float* x = rows; x < rows + count * dim; x += size) {
    for (int64_t i = 0; i < size; ++i) {
      sums[static_cast<size_t>(i)] = 0.0;
      for (int64_t j = 0; j < size; ++j)
        sums[static_cast<size_t>(i)] += __builtin_parityll(static_cast<uint64_t>(i & j)) ? -double(x[j]) : double(x[j]);
    }
    for (int64_t i = 0; i < size; ++i)
      x[i] = static_cast<float>(sums[static_cast<size_t>(i)] / std::sqrt(static_cast<double>(size)));
  }
}

}  // namespace

const KvKernels kv_kernels = {scores, cap, weigh, values, key_rows, value_rows, spread};

}  // namespace gossamer::reference
