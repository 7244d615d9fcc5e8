// SPDX-License-Identifier: Apache-2.0
// Products of experts: tokens lie sorted by expert, each expert has a weight of its own. An expert sees few tokens (8 to
// some hundreds), so its weight is the tall side of a tall product: rows of it stream by, and its tokens are what fits a
// cache.
// The weight is read where it lies. MKL packs it first, which for so few tokens takes as long as the product.
#pragma once
#include <cstdint>

#include "tall.hpp"

namespace gossamer {

// Weights [experts][outputs][inner], floats or bfloat16; tokens of expert e are rows starts[e]..starts[e + 1] - 1.
struct Grouped {
  const int64_t* starts;
  int64_t experts, outputs, inner;
  const float* weight;
  const uint16_t* halves;  // instead of `weight`
};

constexpr int64_t kFewTokens = 4;  // that sums over outputs, or a row of a gradient, are kept in registers for

struct GroupedKernels {
  // y [tokens][rows] = x w^T for some rows of the weight of an expert; `more` rows follow in memory, which may be asked for.
  void (*product)(const float* w, int64_t rows, int64_t more, const float* x, int64_t tokens, int64_t inner, float* y,
                  int64_t y_stride);
  // Columns first..last - 1 of dx [tokens][inner] = g w for one expert.
  void (*back)(const float* w, const float* g, int64_t tokens, int64_t outputs, int64_t inner, int64_t first, int64_t last,
               float* dx);
  // Rows top..bottom - 1 of c = g^T x for one expert, and of the sums; past the caches if `streams`.
  void (*outer)(const TallOuter&, int64_t top, int64_t bottom, bool streams);
};

namespace reference { extern const GroupedKernels grouped_kernels; }
namespace avx2 { extern const GroupedKernels grouped_kernels; }
namespace avx512 { extern const GroupedKernels grouped_kernels; }

// y [tokens, outputs] = x [tokens, inner] w^T + bias, [experts][outputs] or null. May throw std::bad_alloc, as all of these.
void grouped_product(const Grouped& c, const float* x, const float* bias, float* y, Isa isa, int num_threads);
// dx [tokens, inner] = g [tokens, outputs] w
void grouped_input_gradient(const Grouped& c, const float* g, float* dx, Isa isa, int num_threads);
// dw [experts][outputs][inner] = g^T x and sums [experts][outputs] (or null) of experts that have tokens; those of others
// are not touched.
void grouped_weight_gradient(const Grouped& c, const float* g, const float* x, float* dw, float* sums, Isa isa,
                             int num_threads);

}  // namespace gossamer
