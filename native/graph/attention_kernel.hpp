// SPDX-License-Identifier: Apache-2.0
// What attention over edges computes beside the product: softmax, its gradient, and dot products along edges.
#pragma once
#include "graph.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

constexpr int kEdgesAtOnce = 4;
constexpr int64_t kEdgesAhead = 8;

// A row of features that will be needed soon; its rest comes as it is read.
inline void ask_for(const float* row, int64_t width) {
  constexpr int64_t kLine = 16, kMost = 256;  // floats
  for (int64_t f = 0; f < width && f < kMost; f += kLine) __builtin_prefetch(row + f);
}

// term(features from.., mask, row of `other`) summed over the features of each head, for four edges at a time.
template <class V, class Term>
void dots_of_heads(const EdgeRows& edges, int64_t k, const float* other, int64_t width, int64_t heads, float* out,
                   const Term& term) {
  const int64_t per_head = width / heads, stop = edges.starts[k + 1], end = edges.starts[edges.rows];
  for (int64_t e = edges.starts[k]; e < stop; e += kEdgesAtOnce) {
    const int count = static_cast<int>(stop - e < kEdgesAtOnce ? stop - e : kEdgesAtOnce);
    for (int q = 0; q < kEdgesAtOnce; ++q) {
      const int64_t ahead = e + kEdgesAhead + q;
      if (ahead < end) ask_for(other + edges.columns[ahead] * width, width);
    }
    const float* rows[kEdgesAtOnce];
    float* to[kEdgesAtOnce];
    for (int q = 0; q < kEdgesAtOnce; ++q) {
      const int64_t edge = q < count ? e + q : e;
      rows[q] = other + edges.columns[edge] * width;
      to[q] = out + edges.place(edge) * heads;
    }
    for (int64_t h = 0; h < heads; ++h) {
      typename V::Type sum[kEdgesAtOnce] = {V::zero(), V::zero(), V::zero(), V::zero()};
      for (int64_t from = h * per_head; from < (h + 1) * per_head; from += V::kLanes) {
        const typename V::Mask mask = V::first((h + 1) * per_head - from);
#pragma GCC unroll 4
        for (int q = 0; q < kEdgesAtOnce; ++q) sum[q] = term(from, mask, V::load(rows[q] + from, mask), sum[q]);
      }
      float totals[kEdgesAtOnce];
      V::totals(sum, totals);
      for (int q = 0; q < count; ++q) to[q][h] = totals[q];
    }
  }
}

template <class V>
void sddmm(const SddmmCall& c, int64_t first, int64_t last) {
  for (int64_t k = first; k < last; ++k) {
    const float* const grad = c.grad + c.edges.row(k) * c.width;
    dots_of_heads<V>(c.edges, k, c.x, c.width, c.heads, c.out,
                     [&](int64_t from, typename V::Mask mask, typename V::Type x, typename V::Type sum) {
                       return V::fma(V::load(grad + from, mask), x, sum);
                     });
  }
}

template <class V>
void pair_logits(const PairLogitsCall& c, int64_t first, int64_t last) {
  const typename V::Type slope = V::all(c.slope);
  for (int64_t k = first; k < last; ++k) {
    const float* const target = c.target + c.edges.row(k) * c.width;
    dots_of_heads<V>(c.edges, k, c.source, c.width, c.heads, c.logits,
                     [&](int64_t from, typename V::Mask mask, typename V::Type x, typename V::Type sum) {
                       const typename V::Type z = V::add(V::load(target + from, mask), x);
                       return V::fma(V::load(c.att + from, mask), V::where_positive(z, z, V::mul(z, slope)), sum);
                     });
  }
}

template <class V>
void pair_backward(const PairBackwardCall& c, int64_t first, int64_t last) {
  using T = typename V::Type;
  const int64_t per_head = c.width / c.heads;
  const T one = V::all(1.0f), slope = V::all(c.slope);
  for (int64_t k = first; k < last; ++k) {
    const int64_t at = c.edges.row(k) * c.width;
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t from = h * per_head; from < (h + 1) * per_head; from += V::kLanes) {
        const typename V::Mask mask = V::first((h + 1) * per_head - from);
        const T own = V::load(c.own + at + from, mask);
        T sum = V::zero(), of_att = V::zero();
        for (int64_t e = c.edges.starts[k]; e < c.edges.starts[k + 1]; ++e) {
          const T z = V::add(own, V::load(c.other + c.edges.columns[e] * c.width + from, mask));
          const T scaled = V::mul(V::all(c.grad[c.edges.place(e) * c.heads + h]), V::where_positive(z, one, slope));
          sum = V::add(sum, scaled);
          of_att = V::fma(scaled, z, of_att);
        }
        V::store(c.dx + at + from, V::mul(sum, V::load(c.att + from, mask)), mask);
        if (c.datt) V::store(c.datt + from, V::add(V::load(c.datt + from, mask), of_att), mask);
      }
  }
}

template <int kHeads>
void edge_sum_rows(const EdgeSumCall& c, int64_t first, int64_t last) {
  const int64_t heads = kHeads ? kHeads : c.heads;
  float sum[kMostHeads];
  for (int64_t k = first; k < last; ++k) {
    for (int64_t h = 0; h < heads; ++h) sum[h] = 0.0f;
    for (int64_t e = c.edges.starts[k]; e < c.edges.starts[k + 1]; ++e) {
      const float* const values = c.values + c.edges.place(e) * heads;
      for (int64_t h = 0; h < heads; ++h) sum[h] += values[h];
    }
    for (int64_t h = 0; h < heads; ++h) c.sums[c.edges.row(k) * heads + h] = sum[h];
  }
}

inline void edge_sum(const EdgeSumCall& c, int64_t first, int64_t last) {
  (c.heads == 1 ? edge_sum_rows<1> : c.heads == 8 ? edge_sum_rows<8> : edge_sum_rows<0>)(c, first, last);
}

}  // namespace
}  // namespace gossamer
