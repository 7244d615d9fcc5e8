// SPDX-License-Identifier: Apache-2.0
// Tiles of a tall product, once over the vector types of graph/vec256.hpp and graph/vec512.hpp.
//
// A tile has so many rows that its sums fill the registers: each term is one load per vector, one broadcast per row and
// one FMA for each pair of them.
#pragma once
#include <algorithm>
#include <utility>

#include "tall.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

// Rows of a tile that is kV vectors wide.
template <class V, int kV>
constexpr int tile_rows() {
  return V::kLanes == 16 ? (kV == 1 ? 14 : kV == 2 ? 12 : kV == 3 ? 8 : 6) : (kV == 1 ? 8 : kV == 2 ? 6 : 4);
}

template <class V>
constexpr int most_vectors() {
  return V::kLanes == 16 ? 4 : 3;
}

constexpr int64_t kLine = 16;  // floats

// Rows of the next block are asked for while those of this one are multiplied.
[[gnu::always_inline]] inline void ask_for(const float* next, int64_t count) {
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(next + i, 0, 2);
}

template <class V, int kV, int kR>
void product_tile(const TallProduct& c, const float* panel, int64_t row, int64_t column, int64_t from, int64_t to) {
  using T = typename V::Type;
  const typename V::Mask tail = V::first(c.width - column - (kV - 1) * V::kLanes);
  T sum[kR][kV];
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) sum[r][v] = V::zero();
  const float* const x = c.x + row * c.inner;
  const float* b = panel + from * (kV * V::kLanes);
  if (column == 0 && row + 4 * kR <= c.rows)  // memory is slower than the FMA units: three tiles ahead
    for (int r = 0; r < kR; ++r) ask_for(x + (3 * kR + r) * c.inner + from, to - from);
  for (int64_t k = from; k < to; ++k, b += kV * V::kLanes) {
    T w[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) w[v] = V::load(b + v * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) {
      const T term = V::all(x[r * c.inner + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) sum[r][v] = V::fma(term, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
    float* const y = c.y + (row + r) * c.width + column;
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      float* const at = y + v * V::kLanes;
      const bool last = v == kV - 1;
      T total = sum[r][v];
      if (from) {
        total = V::add(last ? V::load(at, tail) : V::load(at), total);
      } else if (c.bias) {
        const float* const bias = c.bias + column + v * V::kLanes;
        total = V::add(last ? V::load(bias, tail) : V::load(bias), total);
      }
      last ? V::store(at, total, tail) : V::store(at, total);
    }
  }
}

// As many rows at a time as a tile has, the rest one by one.
template <class V, int kV>
void product_panel(const TallProduct& c, const float* panel, int64_t first, int64_t last, int64_t column, int64_t from,
                   int64_t to) {
  constexpr int kR = tile_rows<V, kV>();
  int64_t row = first;
  for (; row + kR <= last; row += kR) product_tile<V, kV, kR>(c, panel, row, column, from, to);
  for (; row < last; ++row) product_tile<V, kV, 1>(c, panel, row, column, from, to);
}

template <class V, int... kV>
void product_rows(const TallProduct& c, const Panels& panels, int64_t first, int64_t last,
                  std::integer_sequence<int, kV...>) {
  for (int64_t from = 0; from < c.inner || from == 0; from += kTallInner) {
    const int64_t to = std::min(from + kTallInner, c.inner);
    for (int64_t p = 0; p < panels.count; ++p) {
      const int64_t column = panels.start(p), vectors = panels.columns(p) / V::kLanes;
      const float* const panel = c.panels + column * c.inner;
      ((vectors == kV + 1 ? product_panel<V, kV + 1>(c, panel, first, last, column, from, to) : void()), ...);
    }
  }
}

template <class V>
void product(const TallProduct& c, int64_t first, int64_t last) {
  // So few rows at a time that they stay in L2 while panels pass.
  constexpr int64_t kFew = 168;
  const Panels panels = {c.width, V::kLanes, ((c.width + V::kLanes - 1) / V::kLanes + most_vectors<V>() - 1) /
                                                 most_vectors<V>()};
  for (int64_t row = first; row < last; row += kFew)
    product_rows<V>(c, panels, row, std::min(row + kFew, last), std::make_integer_sequence<int, most_vectors<V>()>());
}

template <class V, int kV, int kR>
void outer_tile(const TallOuter& c, int64_t top, int64_t column, int64_t from, int64_t to) {
  using T = typename V::Type;
  const typename V::Mask tail = V::first(c.width - column - (kV - 1) * V::kLanes);
  T sum[kR][kV];
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) sum[r][v] = V::zero();
  const float* g = c.g + from * c.height + top;
  const float* x = c.x + from * c.width + column;
  const bool asks = top == 0 && to + kTallRows <= c.rows;
  for (int64_t n = from; n < to; ++n, g += c.height, x += c.width) {
    if (asks) ask_for(x + kTallRows * c.width, kV * V::kLanes);
    if (asks && column == 0) ask_for(g + kTallRows * c.height, c.height);
    T w[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v)
      w[v] = v == kV - 1 ? V::load(x + v * V::kLanes, tail) : V::load(x + v * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) {
      const T term = V::all(g[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) sum[r][v] = V::fma(term, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
    float* const at = c.c + (top + r) * c.width + column;
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      float* const to_c = at + v * V::kLanes;
      if (v == kV - 1)
        V::store(to_c, from ? V::add(V::load(to_c, tail), sum[r][v]) : sum[r][v], tail);
      else
        V::store(to_c, from ? V::add(V::load(to_c), sum[r][v]) : sum[r][v]);
    }
  }
}

// Tiles of full height, and one of what is left.
template <class V, int kV, int... kR>
void outer_panel(const TallOuter& c, int64_t column, int64_t top, int64_t bottom, int64_t from, int64_t to,
                 std::integer_sequence<int, kR...>) {
  constexpr int kMost = sizeof...(kR);
  for (; top + kMost <= bottom; top += kMost) outer_tile<V, kV, kMost>(c, top, column, from, to);
  const int64_t left = bottom - top;
  ((kR && left == kR ? outer_tile<V, kV, kR ? kR : 1>(c, top, column, from, to) : void()), ...);
}

template <class V>
void add_rows(const TallOuter& c, int64_t top, int64_t bottom, int64_t from, int64_t to) {
  for (int64_t i = top; i < bottom; i += V::kLanes) {
    const typename V::Mask mask = V::first(bottom - i);
    typename V::Type sum = V::zero();
    for (int64_t n = from; n < to; ++n) sum = V::add(sum, V::load(c.g + n * c.height + i, mask));
    V::store(c.sums + i, from ? V::add(V::load(c.sums + i, mask), sum) : sum, mask);
  }
}

template <class V, int... kV>
void outer_block(const TallOuter& c, const Panels& panels, int64_t p, int64_t top, int64_t bottom, int64_t from,
                 int64_t to, std::integer_sequence<int, kV...>) {
  const int64_t vectors = panels.columns(p) / V::kLanes;
  ((vectors == kV + 1 ? outer_panel<V, kV + 1>(c, panels.start(p), top, bottom, from, to,
                                                  std::make_integer_sequence<int, tile_rows<V, kV + 1>()>())
                        : void()),
   ...);
}

template <class V>
void outer(const TallOuter& c, int64_t first_panel, int64_t last_panel, int64_t top, int64_t bottom) {
  const Panels panels = {c.width, V::kLanes, ((c.width + V::kLanes - 1) / V::kLanes + most_vectors<V>() - 1) /
                                                 most_vectors<V>()};
  // Of a wide c so many columns at a time that they stay in L2, with what is multiplied.
  const int64_t group = std::max<int64_t>(4, 131072 / std::max<int64_t>((bottom - top) * most_vectors<V>() * V::kLanes, 1));
  for (int64_t some = first_panel; some < last_panel; some += group)
    for (int64_t from = 0; from < c.rows || from == 0; from += kTallRows) {
      const int64_t to = std::min(from + kTallRows, c.rows);
      if (c.sums && some == 0) add_rows<V>(c, top, bottom, from, to);
      for (int64_t p = some; p < std::min(some + group, last_panel); ++p)
        outer_block<V>(c, panels, p, top, bottom, from, to, std::make_integer_sequence<int, most_vectors<V>()>());
    }
}

}  // namespace
}  // namespace gossamer
