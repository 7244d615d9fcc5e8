// SPDX-License-Identifier: Apache-2.0
// Products of tall matrices with small ones, as layers of graphs have them: a row for each node, and a weight that fits
// a cache. MKL runs its AVX2 code on other makers' processors, which is half of what these can do.
//
// Each number is a sum over fixed blocks, in order: results do not depend on the number of threads.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

constexpr int64_t kTallInner = 128;  // terms of a block of `tall_product`: a panel of them stays in L1
constexpr int64_t kTallRows = 128;   // terms of a block of `tall_outer`: what is read twice stays in L2

// y = x b + bias with x [rows, inner] and b [inner, width] as panels: columns from starts[p] on, [inner, vectors *
// lanes] each, filled up with zeros.
struct TallProduct {
  const float* x;
  const float* panels;
  const float* bias;  // [width] or null
  float* y;
  int64_t rows, inner, width;
};

// c = g^T x with g [rows, height], x [rows, width]; sums = columns of g, or null.
struct TallOuter {
  const float *g, *x;
  float *c, *sums;
  int64_t rows, height, width;
};

// Panels are as wide as registers allow, and about equally wide.
struct Panels {
  int64_t width, lanes, count;
  int64_t vectors() const { return (width + lanes - 1) / lanes; }
  int64_t start(int64_t p) const { return vectors() * p / count * lanes; }                       // first column
  int64_t columns(int64_t p) const { return (vectors() * (p + 1) / count * lanes) - start(p); }  // with filling
};

struct TallKernels {
  int64_t lanes, most_vectors, tile_height;
  // Rows first..last - 1, all columns.
  void (*product)(const TallProduct&, int64_t first, int64_t last);
  // Panels from..to - 1 of the columns and rows top..bottom - 1 of c, set anew.
  void (*outer)(const TallOuter&, int64_t from, int64_t to, int64_t top, int64_t bottom);

  Panels panels(int64_t width) const {
    const int64_t vectors = (width + lanes - 1) / lanes;
    return {width, lanes, (vectors + most_vectors - 1) / most_vectors};
  }
};

namespace reference { extern const TallKernels tall_kernels; }
namespace avx2 { extern const TallKernels tall_kernels; }
namespace avx512 { extern const TallKernels tall_kernels; }

// y = x w^T + bias with w [width, inner] if turned, else x w with w [inner, width].
void tall_product(const float* x, const float* w, const float* bias, float* y, int64_t rows, int64_t inner,
                  int64_t width, bool turned, Isa isa, int num_threads);
void tall_outer(const TallOuter& call, Isa isa, int num_threads);

}  // namespace gossamer
