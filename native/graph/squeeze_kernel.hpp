// SPDX-License-Identifier: Apache-2.0
// Features without their zeros. Most vectors of a bag of words hold nothing: one comparison and one branch each.
#pragma once
#include "graph.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

// body(offset of the vector, bits of its numbers that are not 0) for vectors that have some.
template <class V, class Body>
inline void each_that_counts(const float* row, int64_t width, Body body) {
  for (int64_t f = 0; f < width; f += V::kLanes) {
    const int64_t left = width - f;
    const uint32_t bits = V::not_zero(left >= V::kLanes ? V::load(row + f) : V::load(row + f, V::first(left)));
    if (bits) body(f, bits);
  }
}

template <class V>
void squeeze(const SqueezeCall& c, int64_t first, int64_t last) {
  for (int64_t k = first; k < last; ++k) {
    const float* const row = c.x + k * c.width;
    if (!c.columns) {
      int64_t count = 0;
      each_that_counts<V>(row, c.width, [&](int64_t, uint32_t bits) { count += __builtin_popcount(bits); });
      c.starts[k + 1] = count;
      continue;
    }
    int64_t at = c.starts[k];
    each_that_counts<V>(row, c.width, [&](int64_t f, uint32_t bits) {
      for (; bits; bits &= bits - 1, ++at) {
        const int64_t column = f + __builtin_ctz(bits);
        c.columns[at] = static_cast<int32_t>(column);
        c.values[at] = row[column];
      }
    });
  }
}

}  // namespace
}  // namespace gossamer
