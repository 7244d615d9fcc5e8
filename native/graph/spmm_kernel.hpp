// SPDX-License-Identifier: Apache-2.0
// Rows of edges times features, once, over the vector types of vec256.hpp and vec512.hpp.
//
// A row of y stays in registers while its edges pass; each edge is one broadcast and one FMA per vector. Rows of x
// are found all over memory: the one some edges ahead, which may belong to a later row, is asked for in time.
#pragma once
#include <utility>

#include "graph.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

constexpr int64_t kAhead = 8;  // edges; 4 and 16 were slower by 5 %

// What an edge multiplies by.
template <class V>
struct NoWeight {
  static constexpr bool kOnes = true;
  struct Of {
    typename V::Type operator()(int) const { return V::all(1.0f); }
  };
  Of at(int64_t) const { return {}; }
};

template <class V>
struct EdgeWeight {
  static constexpr bool kOnes = false;
  const float* values;
  int64_t stride;
  const int32_t* places;
  struct Of {
    typename V::Type v;
    typename V::Type operator()(int) const { return v; }
  };
  Of at(int64_t e) const { return {V::all(values[(places ? places[e] : e) * stride])}; }
};

// Several heads in one vector or next to each other: their values are loaded at once and spread over lanes.
template <class V>
struct HeadWeight {
  static constexpr bool kOnes = false;
  const float* values;
  int64_t heads;
  const int32_t* places;
  typename V::Mask mask;
  const int32_t* lanes;  // [vectors * kLanes], the head of each feature
  struct Of {
    typename V::Type v;
    const int32_t* lanes;
    typename V::Type operator()(int b) const { return V::spread(v, V::lanes(lanes + b * V::kLanes)); }
  };
  Of at(int64_t e) const { return {V::load(values + (places ? places[e] : e) * heads, mask), lanes}; }
};

template <class V, int kB, class X>
inline void ask_ahead(const X* row) {
  constexpr int kLine = 64 / sizeof(X);
  for (int f = 0; f < kB * V::kLanes; f += kLine) __builtin_prefetch(row + f);
}

template <class V, int kB, class Weight, class X>
void spmm_rows(const SpmmCallOf<X>& c, int64_t first, int64_t last, int64_t from, int64_t count, const Weight& weight) {
  using T = typename V::Type;
  // Short rows of y leave the FMA units waiting for each other: several edges go side by side.
  constexpr int kSide = kB == 1 ? 4 : kB <= 4 ? 2 : 1;
  const EdgeRows& edges = c.edges;
  const typename V::Mask tail = V::first(count - (kB - 1) * V::kLanes);
  const int64_t width = c.width, end = edges.starts[last];
  const X* const x = c.x + from;
  for (int64_t k = first; k < last; ++k) {
    T sum[kSide][kB];
    for (int s = 0; s < kSide; ++s)
      for (int b = 0; b < kB; ++b) sum[s][b] = V::zero();
    if (c.bias)
      for (int b = 0; b < kB; ++b)
        sum[0][b] = b == kB - 1 ? V::load(c.bias + from + b * V::kLanes, tail) : V::load(c.bias + from + b * V::kLanes);
    const auto add = [&](int64_t e, T(&to)[kB]) __attribute__((always_inline)) {
      const int64_t ahead = e + kAhead < end ? e + kAhead : e;
      ask_ahead<V, kB>(x + edges.columns[ahead] * width);
      const X* const row = x + edges.columns[e] * width;
      const auto of = weight.at(e);
#pragma GCC unroll 16
      for (int b = 0; b < kB; ++b) {
        const T v = b == kB - 1 ? V::load(row + b * V::kLanes, tail) : V::load(row + b * V::kLanes);
        to[b] = Weight::kOnes ? V::add(to[b], v) : V::fma(of(b), v, to[b]);
      }
    };
    int64_t e = edges.starts[k];
    const int64_t stop = edges.starts[k + 1];
    for (; e + kSide <= stop; e += kSide)
#pragma GCC unroll 4
      for (int s = 0; s < kSide; ++s) add(e + s, sum[s]);
    for (; e < stop; ++e) add(e, sum[0]);
    for (int s = 1; s < kSide; ++s)
      for (int b = 0; b < kB; ++b) sum[0][b] = V::add(sum[0][b], sum[s][b]);
    X* const y = c.y + edges.row(k) * width + from;
    for (int b = 0; b < kB - 1; ++b) V::store(y + b * V::kLanes, sum[0][b]);
    V::store(y + (kB - 1) * V::kLanes, sum[0][kB - 1], tail);
  }
}

template <class V, class Weight, class X, int... kB>
void spmm_by_vectors(const SpmmCallOf<X>& c, int64_t first, int64_t last, int64_t from, int64_t count, const Weight& weight,
                     std::integer_sequence<int, kB...>) {
  const int64_t vectors = (count + V::kLanes - 1) / V::kLanes;
  ((vectors == kB + 1 ? spmm_rows<V, kB + 1, Weight, X>(c, first, last, from, count, weight) : void()), ...);
}

// Features from..to - 1, as many vectors of them at a time as there are registers for.
template <class V, class Weight, class X>
void spmm_features(const SpmmCallOf<X>& c, int64_t first, int64_t last, int64_t from, int64_t to, const Weight& weight) {
  constexpr int64_t kMost = V::kMostVectors * V::kLanes;
  for (; from < to; from += kMost)
    spmm_by_vectors<V>(c, first, last, from, to - from < kMost ? to - from : kMost, weight,
                       std::make_integer_sequence<int, V::kMostVectors>());
}

template <class V, class X>
void spmm(const SpmmCallOf<X>& c, int64_t first, int64_t last, int64_t from, int64_t to) {
  const int32_t* const places = c.edges.places;
  if (!c.values) return spmm_features<V>(c, first, last, from, to, NoWeight<V>{});
  const int64_t per_head = c.width / c.heads;
  if (c.heads == 1 || per_head >= V::kMostVectors * V::kLanes || c.heads > V::kLanes) {
    for (int64_t h = from / per_head; h * per_head < to; ++h) {
      const int64_t start = h * per_head, stop = start + per_head;
      spmm_features<V>(c, first, last, start > from ? start : from, stop < to ? stop : to,
                       EdgeWeight<V>{c.values + h, c.heads, places});
    }
    return;
  }
  constexpr int64_t kMost = V::kMostVectors * V::kLanes;
  int32_t lanes[kMost];
  for (; from < to; from += kMost) {
    for (int64_t f = 0; f < kMost; ++f)
      lanes[f] = static_cast<int32_t>((from + f < c.width ? from + f : c.width - 1) / per_head);
    const HeadWeight<V> weight{c.values, c.heads, places, V::first(c.heads), lanes};
    spmm_features<V>(c, first, last, from, to - from < kMost ? to : from + kMost, weight);
  }
}

template <class V>
void max_rows(const MaxCall& c, int64_t first, int64_t last) {
  using T = typename V::Type;
  constexpr int kB = 4;
  const EdgeRows& edges = c.edges;
  const int64_t width = c.width;
  for (int64_t k = first; k < last; ++k) {
    const int64_t start = edges.starts[k], stop = edges.starts[k + 1], at = edges.row(k) * width;
    for (int64_t from = 0; from < width; from += kB * V::kLanes) {
      T most[kB], ties[kB];
      typename V::Mask mask[kB];
      for (int b = 0; b < kB; ++b) {
        const int64_t left = width - from - b * V::kLanes;
        mask[b] = V::first(left > 0 ? left : 0);
        most[b] = start < stop ? V::all(-__builtin_inff()) : V::zero();
        ties[b] = V::zero();
      }
      for (int64_t e = start; e < stop; ++e)
        for (int b = 0; b < kB; ++b)
          most[b] = V::larger(V::load(c.x + edges.columns[e] * width + from + b * V::kLanes, mask[b]), most[b]);
      for (int b = 0; b < kB; ++b) V::store(c.y + at + from + b * V::kLanes, most[b], mask[b]);
      if (!c.ties) continue;
      for (int64_t e = start; e < stop; ++e)
        for (int b = 0; b < kB; ++b)
          ties[b] = V::add_where_equal(
              ties[b], V::load(c.x + edges.columns[e] * width + from + b * V::kLanes, mask[b]), most[b], V::all(1.0f));
      for (int b = 0; b < kB; ++b) V::store(c.ties + at + from + b * V::kLanes, ties[b], mask[b]);
    }
  }
}

template <class V>
void max_backward(const MaxBackwardCall& c, int64_t first, int64_t last) {
  using T = typename V::Type;
  constexpr int kB = 4;
  const EdgeRows& edges = c.edges;
  const int64_t width = c.width;
  for (int64_t k = first; k < last; ++k) {
    const int64_t at = edges.row(k) * width;
    for (int64_t from = 0; from < width; from += kB * V::kLanes) {
      T own[kB], sum[kB];
      typename V::Mask mask[kB];
      for (int b = 0; b < kB; ++b) {
        const int64_t left = width - from - b * V::kLanes;
        mask[b] = V::first(left > 0 ? left : 0);
        own[b] = V::load(c.x + at + from + b * V::kLanes, mask[b]);
        sum[b] = V::zero();
      }
      for (int64_t e = edges.starts[k]; e < edges.starts[k + 1]; ++e)
        for (int b = 0; b < kB; ++b) {
          const int64_t other = edges.columns[e] * width + from + b * V::kLanes;
          sum[b] = V::add_where_equal(sum[b], own[b], V::load(c.y + other, mask[b]), V::load(c.grad + other, mask[b]));
        }
      for (int b = 0; b < kB; ++b) V::store(c.dx + at + from + b * V::kLanes, sum[b], mask[b]);
    }
  }
}

}  // namespace
}  // namespace gossamer
