// SPDX-License-Identifier: Apache-2.0
// Tiles of the products of experts, once over the vector types of graph/vec256.hpp and graph/vec512.hpp.
//
// A weight is read once, from memory, while some tens of tokens wait in L2. So the next rows are asked for line by line
// between the multiplications: asked for at once they would fill the buffers that loads of this tile need.
#pragma once
#include <algorithm>
#include <type_traits>

#include "grouped.hpp"
#include "tall_kernel.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

constexpr int64_t kFloatsOfLine = 16;

// Asks for the lines of some rows in steps that the caller spreads over its work.
struct Ahead {
  const float *at, *end;

  [[gnu::always_inline]] inline void step() {
    if (at < end) __builtin_prefetch(at, 0, 2);
    at += kFloatsOfLine;
  }
};

// Sums of kR rows and kT tokens over columns from..to - 1, lanes being columns.
template <class V, int kR, int kT>
void dot_tile(const float* w, const float* x, int64_t inner, int64_t from, int64_t to, float* y, int64_t y_stride,
              bool adds, Ahead& ahead) {
  using T = typename V::Type;
  T sum[kT][kR];
#pragma GCC unroll 4
  for (int t = 0; t < kT; ++t)
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) sum[t][r] = V::zero();
  int64_t k = from;
  for (; k + V::kLanes <= to; k += V::kLanes) {
    ahead.step();
    T xs[kT];
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) xs[t] = V::load(x + t * inner + k);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const T row = V::load(w + r * inner + k);
#pragma GCC unroll 4
      for (int t = 0; t < kT; ++t) sum[t][r] = V::fma(row, xs[t], sum[t][r]);
    }
  }
  if (k < to) {
    const typename V::Mask tail = V::first(to - k);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const T row = V::load(w + r * inner + k, tail);
#pragma GCC unroll 4
      for (int t = 0; t < kT; ++t) sum[t][r] = V::fma(row, V::load(x + t * inner + k, tail), sum[t][r]);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kT; ++t)
#pragma GCC unroll 2
    for (int r = 0; r < kR; r += 4) {
      float found[4];
      T four[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) four[i] = r + i < kR ? sum[t][r + i < kR ? r + i : 0] : V::zero();
      V::totals(four, found);
      for (int i = 0; i < std::min(4, kR - r); ++i) {
        float& result = y[t * y_stride + r + i];
        result = adds ? result + found[i] : found[i];
      }
    }
}

template <class V, int kR, int kT>
void dot_rows(const float* w, const float* x, int64_t tokens, int64_t inner, int64_t from, int64_t to, float* y,
              int64_t y_stride, Ahead& ahead) {
  int64_t t = 0;
  for (; t + kT <= tokens; t += kT)
    dot_tile<V, kR, kT>(w, x + t * inner, inner, from, to, y + t * y_stride, y_stride, from > 0, ahead);
  for (; t < tokens; ++t)
    dot_tile<V, kR, 1>(w, x + t * inner, inner, from, to, y + t * y_stride, y_stride, from > 0, ahead);
}

// y [tokens][rows] = x w^T for some rows of a weight, of which `more` rows follow in memory.
template <class V, int kR, int kT>
void grouped_rows(const float* w, int64_t rows, int64_t more, const float* x, int64_t tokens, int64_t inner, float* y,
                  int64_t y_stride) {
  // So many columns at a time that kR rows and kT tokens stay in L1.
  constexpr int64_t kMost = 640;
  const int64_t blocks = std::max<int64_t>((inner + kMost - 1) / kMost, 1);
  const int64_t block = ((inner + blocks - 1) / blocks + V::kLanes - 1) / V::kLanes * V::kLanes;
  int64_t row = 0;
  const auto pass = [&](auto height) {
    constexpr int kHeight = decltype(height)::value;
    // As many lines as a pass of this tile reads, two tiles ahead.
    const float* const next = w + (row + 2 * kHeight) * inner;
    Ahead ahead = {next, std::min(next + kHeight * inner, w + (rows + more) * inner)};
    for (int64_t from = 0; from < inner || from == 0; from += std::max<int64_t>(block, 1))
      dot_rows<V, kHeight, kT>(w + row * inner, x, tokens, inner, from, std::min(from + block, inner), y + row, y_stride,
                               ahead);
    row += kHeight;
  };
  while (row + kR <= rows) pass(std::integral_constant<int, kR>());
  while (row < rows) pass(std::integral_constant<int, 1>());
}

// kT tokens and kV vectors of columns: sums over outputs from..to - 1, added to what is there if `adds`.
template <class V, int kT, int kV>
void back_tile(const float* w, const float* g, int64_t inner, int64_t outputs, int64_t from, int64_t to, float* dx,
               typename V::Mask tail, bool adds, Ahead& ahead, int lines) {
  using T = typename V::Type;
  T sum[kT][kV];
#pragma GCC unroll 8
  for (int t = 0; t < kT; ++t)
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      const float* const at = dx + t * inner + v * V::kLanes;
      sum[t][v] = !adds ? V::zero() : v == kV - 1 ? V::load(at, tail) : V::load(at);
    }
  w += from * inner;
  for (int64_t o = from; o < to; ++o, w += inner) {
    for (int i = 0; i < lines; ++i) ahead.step();
    T row[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v)
      row[v] = v == kV - 1 ? V::load(w + v * V::kLanes, tail) : V::load(w + v * V::kLanes);
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
      const T term = V::all(g[t * outputs + o]);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) sum[t][v] = V::fma(term, row[v], sum[t][v]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kT; ++t)
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      float* const at = dx + t * inner + v * V::kLanes;
      v == kV - 1 ? V::store(at, sum[t][v], tail) : V::store(at, sum[t][v]);
    }
}

// kT tokens and kR outputs from o on: rows of w stream by, dx stays in L1.
template <class V, int kT, int kR>
void back_rows(const float* w, const float* g, int64_t outputs, int64_t inner, int64_t o, int64_t first, int64_t last,
               float* dx) {
  using T = typename V::Type;
  const auto columns = [&](int64_t column, auto load, auto store) {
    T sum[kT];
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) sum[t] = o ? load(dx + t * inner + column) : V::zero();
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const T row = load(w + (o + r) * inner + column);
#pragma GCC unroll 4
      for (int t = 0; t < kT; ++t) sum[t] = V::fma(V::all(g[t * outputs + o + r]), row, sum[t]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) store(dx + t * inner + column, sum[t]);
  };
  int64_t column = first;
  for (; column + V::kLanes <= last; column += V::kLanes)
    columns(column, [](const float* p) { return V::load(p); }, [](float* p, T v) { V::store(p, v); });
  if (column == last) return;
  const typename V::Mask tail = V::first(last - column);
  columns(column, [&](const float* p) { return V::load(p, tail); }, [&](float* p, T v) { V::store(p, v, tail); });
}

template <class V, int kT>
void back_few(const float* w, const float* g, int64_t outputs, int64_t inner, int64_t first, int64_t last, float* dx) {
  constexpr int kRows = 8;
  int64_t o = 0;
  for (; o + kRows <= outputs; o += kRows) back_rows<V, kT, kRows>(w, g, outputs, inner, o, first, last, dx);
  for (; o < outputs; ++o) back_rows<V, kT, 1>(w, g, outputs, inner, o, first, last, dx);
}

// task(std::integral_constant) of the number of tokens, 1 to kFewTokens.
template <class Task>
void with_count(int64_t tokens, Task&& task) {
  static_assert(kFewTokens == 4);
  tokens == 1   ? task(std::integral_constant<int, 1>())
  : tokens == 2 ? task(std::integral_constant<int, 2>())
  : tokens == 3 ? task(std::integral_constant<int, 3>())
                : task(std::integral_constant<int, 4>());
}

// Rows top..bottom - 1 of c = g^T x for kN tokens: each is written once and never read.
template <class V, int kN, bool kStreams>
void outer_few(const TallOuter& c, int64_t top, int64_t bottom) {
  using T = typename V::Type;
  for (int64_t i = top; i < bottom; ++i) {
    T own[kN];
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) own[n] = V::all(c.g[n * c.height + i]);
    float* const to = c.c + i * c.width;
    int64_t k = 0;
    for (; k + V::kLanes <= c.width; k += V::kLanes) {
      T sum = V::mul(own[0], V::load(c.x + k));
#pragma GCC unroll 4
      for (int n = 1; n < kN; ++n) sum = V::fma(own[n], V::load(c.x + n * c.width + k), sum);
      kStreams ? V::stream(to + k, sum) : V::store(to + k, sum);
    }
    if (k == c.width) continue;
    const typename V::Mask tail = V::first(c.width - k);
    T sum = V::mul(own[0], V::load(c.x + k, tail));
#pragma GCC unroll 4
    for (int n = 1; n < kN; ++n) sum = V::fma(own[n], V::load(c.x + n * c.width + k, tail), sum);
    V::store(to + k, sum, tail);
  }
  if (kStreams) V::fence();
}

template <class V>
void grouped_outer(const TallOuter& c, int64_t top, int64_t bottom, bool streams) {
  if (c.sums && (c.rows <= kFewTokens || c.width == 0)) add_rows<V>(c, top, bottom, 0, c.rows);
  if (c.rows > kFewTokens) {
    const int64_t vectors = (c.width + V::kLanes - 1) / V::kLanes;
    outer<V>(c, 0, (vectors + most_vectors<V>() - 1) / most_vectors<V>(), top, bottom);
    return;
  }
  with_count(c.rows, [&](auto count) {
    constexpr int kN = decltype(count)::value;
    streams ? outer_few<V, kN, true>(c, top, bottom) : outer_few<V, kN, false>(c, top, bottom);
  });
}

// dx [tokens][inner] = g w, all of one expert, columns first..last - 1.
template <class V, int kT, int kV>
void grouped_back(const float* w, const float* g, int64_t tokens, int64_t outputs, int64_t inner, int64_t first,
                  int64_t last, float* dx) {
  if (tokens <= kFewTokens && outputs) {
    with_count(tokens, [&](auto count) {
      back_few<V, decltype(count)::value>(w, g, outputs, inner, first, last, dx);
    });
    return;
  }
  constexpr int64_t kOutputs = 64;  // with kV vectors of columns half of L1
  const int64_t tiles = (tokens + kT - 1) / kT;
  for (int64_t from = 0; from < outputs; from += kOutputs) {
    const int64_t to = std::min(from + kOutputs, outputs);
    // The next outputs, a part of them in each tile.
    const float* const next = w + to * inner;
    Ahead ahead = {next, std::min(next + kOutputs * inner, w + outputs * inner)};
    const int lines = tiles >= kV ? 1 : static_cast<int>((kV + tiles - 1) / tiles);
    const auto columns = [&](auto vectors, int64_t column) {
      constexpr int kOwn = decltype(vectors)::value;
      const typename V::Mask tail = V::first(last - column - (kOwn - 1) * V::kLanes);
      int64_t t = 0;
      for (; t + kT <= tokens; t += kT)
        back_tile<V, kT, kOwn>(w + column, g + t * outputs, inner, outputs, from, to, dx + t * inner + column, tail,
                               from > 0, ahead, lines);
      for (; t < tokens; ++t)
        back_tile<V, 1, kOwn>(w + column, g + t * outputs, inner, outputs, from, to, dx + t * inner + column, tail,
                              from > 0, ahead, lines);
    };
    int64_t column = first;
    for (; column + kV * V::kLanes <= last; column += kV * V::kLanes) columns(std::integral_constant<int, kV>(), column);
    for (; column < last; column += V::kLanes) columns(std::integral_constant<int, 1>(), column);
  }
}

}  // namespace
}  // namespace gossamer
