// SPDX-License-Identifier: Apache-2.0
// Dots of all pairs of a few vectors that are in the cache.
#pragma once
#include "table/table.hpp"

namespace gossamer::table {
namespace {  // each instruction set has its own copy

// Dots of one vector with N others.
template <class V, int N>
void dots_of(const float* one, const float* others, int64_t stride, float* out) {
  typename V::F sums[N];
  for (typename V::F& sum : sums) sum = V::zero();
  for (int64_t c = 0; c < stride; c += kLanes) {
    const typename V::F x = V::load(one + c);
    for (int n = 0; n < N; ++n) sums[n] = V::add(sums[n], V::mul(x, V::load(others + n * stride + c)));
  }
  for (int n = 0; n < N; ++n) out[n] = V::sum(sums[n]);
}

template <class V>
void pair_dots(const float* vectors, int64_t count, int64_t stride, float* out) {
  for (int64_t i = 1; i < count; ++i) {
    const float* const one = vectors + i * stride;
    int64_t j = 0;
    for (; j + 4 <= i; j += 4) dots_of<V, 4>(one, vectors + j * stride, stride, out + j);
    for (; j < i; ++j) dots_of<V, 1>(one, vectors + j * stride, stride, out + j);
    out += i;
  }
}

}  // namespace
}  // namespace gossamer::table
