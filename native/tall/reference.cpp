// SPDX-License-Identifier: Apache-2.0
// What the kernels of tall products compute, said plainly.
#include <algorithm>

#include "grouped.hpp"
#include "tall.hpp"

namespace gossamer::reference {
namespace {

void product(const TallProduct& c, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row)
    for (int64_t j = 0; j < c.width; ++j) {
      float sum = c.bias ? c.bias[j] : 0.0f;
      for (int64_t k = 0; k < c.inner; ++k) sum += c.x[row * c.inner + k] * c.panels[j * c.inner + k];
      c.y[row * c.width + j] = sum;
    }
}

void outer(const TallOuter& c, int64_t from, int64_t to, int64_t top, int64_t bottom) {
  for (int64_t i = top; i < bottom; ++i) {
    std::fill(c.c + i * c.width + from, c.c + i * c.width + to, 0.0f);
    if (c.sums && from == 0) c.sums[i] = 0.0f;
    for (int64_t n = 0; n < c.rows; ++n) {
      const float g = c.g[n * c.height + i];
      if (c.sums && from == 0) c.sums[i] += g;
      for (int64_t j = from; j < to; ++j) c.c[i * c.width + j] += g * c.x[n * c.width + j];
    }
  }
}

void product_of_rows(const float* w, int64_t rows, int64_t, const float* x, int64_t tokens, int64_t inner, float* y,
                     int64_t y_stride) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0.0f;
      for (int64_t k = 0; k < inner; ++k) sum += x[t * inner + k] * w[r * inner + k];
      y[t * y_stride + r] = sum;
    }
}

void back(const float* w, const float* g, int64_t tokens, int64_t outputs, int64_t inner, int64_t first, int64_t last,
          float* dx) {
  for (int64_t t = 0; t < tokens; ++t) {
    std::fill(dx + t * inner + first, dx + t * inner + last, 0.0f);
    for (int64_t o = 0; o < outputs; ++o)
      for (int64_t k = first; k < last; ++k) dx[t * inner + k] += g[t * outputs + o] * w[o * inner + k];
  }
}

void outer_of_expert(const TallOuter& c, int64_t top, int64_t bottom, bool) { outer(c, 0, c.width, top, bottom); }

}  // namespace

const TallKernels tall_kernels = {1, 1, 1, product, outer};
const GroupedKernels grouped_kernels = {product_of_rows, back, outer_of_expert};

}  // namespace gossamer::reference
