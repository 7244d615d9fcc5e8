// SPDX-License-Identifier: Apache-2.0
// The row-group kernel, once, over a vector type V (see panel_kernel.hpp for what it supplies).
#pragma once
#include <immintrin.h>

#include "gossamer/row_groups.hpp"
#include "simd/activation.hpp"
#include "simd/transpose8.hpp"

namespace gossamer {
namespace {

// acc[i][q] += weight[i] * x[q]. Whichever of the two is fewer stays in registers: 12 accumulators
// leave room for 3 and one in passing.
template <class V, int N, int NV>
__attribute__((always_inline)) inline void add_column(typename V::Type (&acc)[N][NV], const float* weights,
                                                      const float* x) {
  if constexpr (V::kLanes == 8 && N == 4 && NV == 3) {
    V::add_column(acc, weights, x);
  } else if constexpr (N <= NV) {
    typename V::Type w[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) w[i] = V::broadcast(weights + i);
#pragma GCC unroll 8
    for (int q = 0; q < NV; ++q) {
      typename V::Type v = V::load(x + q * V::kLanes);
      // Keeps the compiler from loading it again for each FMA, which the load ports cannot bear.
      asm volatile("" : "+v"(v));
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) acc[i][q] = V::fma(w[i], v, acc[i][q]);
    }
  } else {
    typename V::Type v[NV];
#pragma GCC unroll 8
    for (int q = 0; q < NV; ++q) v[q] = V::load(x + q * V::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      const typename V::Type w = V::broadcast(weights + i);
#pragma GCC unroll 8
      for (int q = 0; q < NV; ++q) acc[i][q] = V::fma(w, v[q], acc[i][q]);
    }
  }
}

// One row of accumulators between registers and the tile.
template <class V, int NV>
__attribute__((always_inline)) inline void load_row(typename V::Type (&acc)[NV], const float* row) {
#pragma GCC unroll 8
  for (int q = 0; q < NV; ++q) acc[q] = V::load(row + q * V::kLanes);
}

template <class V, int NV>
__attribute__((always_inline)) inline void store_row(const typename V::Type (&acc)[NV], float* row) {
#pragma GCC unroll 8
  for (int q = 0; q < NV; ++q) V::store(row + q * V::kLanes, acc[q]);
}

// Rows of x or y that will be wanted soon, asked into L2 a few lines at a time.
struct LinesAhead {
  const char* row;
  int64_t stride, bytes, rows_left, lines;
  int64_t at = 0;

  // The whole of `rows` x `columns` floats in `times` calls of ask().
  static LinesAhead of(const float* first, int64_t stride, int64_t rows, int64_t columns, int64_t times) {
    const int64_t bytes = columns * 4, total = rows * ((bytes + 63) / 64);
    const bool any = rows > 0 && columns > 0 && times > 0;
    const int64_t lines = any ? (total + times - 1) / times : 0;
    return {reinterpret_cast<const char*>(first), stride * 4, bytes, any ? rows : 0, lines};
  }
  __attribute__((always_inline)) void ask() {
    for (int64_t i = 0; i < lines && rows_left; ++i) {
      _mm_prefetch(row + at, _MM_HINT_T1);
      at += 64;
      if (at >= bytes) at = 0, row += stride, --rows_left;
    }
  }
};

// Columns of one turn of the inner loop: 2 and 8 are no faster.
constexpr int kColumnsUnrolled = 4;

// Adds one slab of columns to the accumulators of a row tile, tile[row][NV vectors]. With `bias` they
// start from it instead of the tile.
template <class V, int N, int NV, bool CHOICES>
__attribute__((noinline)) void add_groups(const RowGroupsView& view, const GroupBlock& block, int64_t num_groups,
                                          const float* slab, float* tile, const float* bias, LinesAhead& x_ahead,
                                          LinesAhead& y_ahead) {
  constexpr int kWidth = NV * V::kLanes;
  constexpr int kScale = kWidth / 8;
  const float* value = view.values + block.first_column * N;
  const uint16_t* offset = view.offsets + block.first_column;
  const uint16_t* first_row = view.first_rows + block.first_group;
  const uint16_t* count = view.counts + block.first_group * view.num_choices;
  const char* base = reinterpret_cast<const char*>(slab);
  for (int64_t g = 0; g < num_groups; ++g, ++first_row) {
    float* group = tile + static_cast<int64_t>(first_row[0]) * kWidth;
    // The next group is elsewhere in L2.
    const char* next = reinterpret_cast<const char*>(tile + static_cast<int64_t>(first_row[1]) * kWidth);
#pragma GCC unroll 32
    for (int line = 0; line < N * kWidth * 4; line += 64) _mm_prefetch(next + line, _MM_HINT_T0);
    x_ahead.ask();
    y_ahead.ask();
    float* row[N];
    typename V::Type acc[N][NV];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      row[i] = group + (CHOICES ? view.choices[i] : i) * kWidth;
      if (bias) {
#pragma GCC unroll 8
        for (int q = 0; q < NV; ++q) acc[i][q] = V::broadcast(bias + first_row[0] + i);
      } else {
        load_row<V, NV>(acc[i], row[i]);
      }
    }
    for (int64_t c = 0; c < (CHOICES ? view.num_choices : 1); ++c, ++count) {
      if (CHOICES && c) {
        // Gray order: one row leaves the registers, one enters.
        const int changed = view.changed[c];
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
          if (changed != i) continue;
          store_row<V, NV>(acc[i], row[i]);
          row[i] = group + view.choices[c * N + i] * kWidth;
          load_row<V, NV>(acc[i], row[i]);
        }
      }
      const auto step = [&](int j) __attribute__((always_inline)) {
        const char* x = base + static_cast<size_t>(offset[j]) * kScale;
        if constexpr (N > 2) {
          // The slab is in L2: worth 5 to 10 %. With N = 2 there is no load to spare for it.
          const char* ahead = base + static_cast<size_t>(offset[j + kColumnsAhead]) * kScale;
#pragma GCC unroll 8
          for (int line = 0; line < kWidth * 4; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
        }
        add_column<V, N, NV>(acc, value + j * N, reinterpret_cast<const float*>(x));
        // Columns stay apart: mixed, they need more registers than there are.
        asm volatile("" ::: "memory");
      };
      int left = count[0];
      for (; left >= kColumnsUnrolled; left -= kColumnsUnrolled) {
#pragma GCC unroll 8
        for (int j = 0; j < kColumnsUnrolled; ++j) step(j);
        value += kColumnsUnrolled * N;
        offset += kColumnsUnrolled;
      }
#pragma GCC unroll 8
      for (int j = 0; j < kColumnsUnrolled - 1; ++j) {
        if (j >= left) break;
        step(j);
      }
      value += left * N;
      offset += left;
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) store_row<V, NV>(acc[i], row[i]);
  }
}

// Columns turned and accumulator rows turned back at a time: they stay in L1 for all groups of 8 tokens.
constexpr int64_t kColumnsTurned = 128, kGroupRowsTurned = 64;

static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

template <int WIDTH>
static inline void turn_columns(const LinearCall& call, TokenTile tokens, int64_t first, int64_t columns, float* slab) {
  const float* x = call.x + tokens.first * call.x_stride + first;
  for (int64_t k = 0; k < columns; k += kColumnsTurned)
    for (int t = 0; t < WIDTH; t += 8)
      tokens8_to_panel(x + t * call.x_stride + k, call.x_stride, tokens.num_tokens - t,
                       lesser(kColumnsTurned, columns - k), slab + k * WIDTH + t, WIDTH);
}

// Activation, and the accumulators of a row tile back to [token][row].
template <int WIDTH>
static inline void finish_rows(const LinearCall& call, TokenTile tokens, int64_t first, int64_t num_rows, float* tile) {
  activate(tile, num_rows * WIDTH, call.activation);
  float* y = call.y + tokens.first * call.y_stride + first;
  for (int64_t r = 0; r < num_rows; r += kGroupRowsTurned)
    for (int t = 0; t < tokens.num_tokens; t += 8)
      tile_to_tokens8(tile + r * WIDTH + t, WIDTH, lesser(8, tokens.num_tokens - t),
                      lesser(kGroupRowsTurned, num_rows - r), y + t * call.y_stride + r, call.y_stride);
}

template <class V, int N, int NV>
void row_groups_tile(const RowGroupsView& view, const LinearCall& call, TokenTile tokens, int64_t first_tile,
                     int64_t last_tile, float* scratch) {
  constexpr int kWidth = NV * V::kLanes;
  const auto add_groups_here = view.num_choices > 1 ? add_groups<V, N, NV, true> : add_groups<V, N, NV, false>;
  const bool slabs = row_groups_go_by_slabs(view, kWidth);
  const bool is_started = view.has_own_rows && view.num_slabs;
  const int64_t row0 = view.tile_rows[first_tile];
  float* panel = scratch;
  float* tile = panel + (slabs ? view.slab_columns : view.columns) * kWidth;
  float* bias = tile + row_groups_accumulators(view, kWidth) * kWidth;

  // Rows of one tile, or of all in slab order, from their bias.
  const auto start = [&](int64_t first, int64_t last) {
    for (int64_t r = 0; r < last - first + kMaxGroupKept; ++r) {
      bias[r] = call.bias && r < last - first ? call.bias[first + r] : 0.0f;
      if (is_started) continue;
#pragma GCC unroll 8
      for (int q = 0; q < NV; ++q) V::store(tile + r * kWidth + q * V::kLanes, V::broadcast(bias + r));
    }
  };
  const auto add = [&](int64_t part, int64_t s, const float* slab, int64_t row, LinesAhead& x, LinesAhead& y) {
    add_groups_here(view, view.blocks[part * view.num_slabs + s], view.tile_groups[part], slab, tile + row * kWidth,
                    s || !is_started ? nullptr : bias + row, x, y);
  };
  // What is read next and what is written next, spread over `times` groups: from L3 they came at a third
  // of the rate of L2, which 1024 tokens noticed most.
  const auto x_ahead = [&](int64_t first_token, int64_t first, int64_t columns, int64_t times) {
    const int64_t num_tokens = lesser(kWidth, call.tokens - first_token);
    return LinesAhead::of(call.x + first_token * call.x_stride + first, call.x_stride, num_tokens,
                          lesser(columns, view.columns - first), times);
  };
  const auto y_ahead = [&](int64_t part, int64_t times) {
    return LinesAhead::of(call.y + tokens.first * call.y_stride + view.tile_rows[part], call.y_stride,
                          tokens.num_tokens, view.tile_rows[part + 1] - view.tile_rows[part], times);
  };
  int64_t num_groups = 0;
  for (int64_t part = first_tile; part < last_tile; ++part) num_groups += view.tile_groups[part];
  const int64_t next_tokens = tokens.first + tokens.num_tokens;

  if (slabs) {
    start(row0, view.tile_rows[last_tile]);
    for (int64_t s = 0; s < view.num_slabs; ++s) {
      const int64_t k = s * view.slab_columns;
      const bool is_last = s + 1 == view.num_slabs;
      turn_columns<kWidth>(call, tokens, k, lesser(view.slab_columns, view.columns - k), panel);
      LinesAhead x = is_last ? x_ahead(next_tokens, 0, view.slab_columns, num_groups)
                             : x_ahead(tokens.first, k + view.slab_columns, view.slab_columns, num_groups);
      for (int64_t part = first_tile; part < last_tile; ++part) {
        LinesAhead y = y_ahead(part, is_last ? view.tile_groups[part] : 0);
        add(part, s, panel, view.tile_rows[part] - row0, x, y);
      }
    }
    for (int64_t part = first_tile; part < last_tile; ++part)
      finish_rows<kWidth>(call, tokens, view.tile_rows[part], view.tile_rows[part + 1] - view.tile_rows[part],
                          tile + (view.tile_rows[part] - row0) * kWidth);
    return;
  }
  turn_columns<kWidth>(call, tokens, 0, view.columns, panel);
  LinesAhead x = x_ahead(next_tokens, 0, view.columns, num_groups * view.num_slabs);
  for (int64_t part = first_tile; part < last_tile; ++part) {
    start(view.tile_rows[part], view.tile_rows[part + 1]);
    for (int64_t s = 0; s < view.num_slabs; ++s) {
      LinesAhead y = y_ahead(part, s + 1 == view.num_slabs ? view.tile_groups[part] : 0);
      add(part, s, panel + s * view.slab_columns * kWidth, 0, x, y);
    }
    finish_rows<kWidth>(call, tokens, view.tile_rows[part], view.tile_rows[part + 1] - view.tile_rows[part], tile);
  }
}

// The instantiation for a width of tokens, which is at most MAX vectors.
template <class V, int N, int MAX>
void row_groups_width(const RowGroupsView& view, const LinearCall& call, TokenTile tokens, int64_t first_tile,
                      int64_t last_tile, float* scratch) {
  if constexpr (MAX > 1)
    if (tokens.width < MAX * V::kLanes)
      return row_groups_width<V, N, MAX - 1>(view, call, tokens, first_tile, last_tile, scratch);
  row_groups_tile<V, N, MAX>(view, call, tokens, first_tile, last_tile, scratch);
}

// The kernel's own mix on a group that never ends: N broadcasts and NV loads for N * NV FMAs.
template <class V, int N, int NV>
double ceiling_row_groups(int64_t repeats) {
  constexpr int kWidth = NV * V::kLanes, kColumns = 96, kKept = 1024;
  static float values[kKept * N];
  static uint16_t offsets[kKept + kColumnsAhead];
  static const uint8_t choices[kMaxGroupKept] = {0, 1, 2, 3}, changed[1] = {0};
  static const uint16_t first_rows[] = {0, 0}, counts[] = {kKept};
  unsigned state = 12345;
  for (int i = 0; i < kKept; ++i) {
    state = state * 1664525u + 1013904223u;
    offsets[i] = static_cast<uint16_t>((state >> 16) % kColumns * kOffsetUnit);
  }
  for (float& v : values) v = 0.5f;
  RowGroupsView view = {};
  view.num_kept = N;
  view.num_choices = 1;
  view.choices = choices;
  view.changed = changed;
  view.first_rows = first_rows;
  view.counts = counts;
  view.offsets = offsets;
  view.values = values;
  alignas(64) static float slab[kColumns * kWidth], tile[N * kWidth];
  for (float& v : slab) v = 0.25f;  // written first: see ceiling_panel
  for (float& v : tile) v = 0.0f;
  LinesAhead none = {};
  for (int64_t i = 0; i < repeats; ++i) add_groups<V, N, NV, false>(view, {0, 0}, 1, slab, tile, nullptr, none, none);
  return 2.0 * N * kWidth * kKept * static_cast<double>(repeats);
}

}  // namespace
}  // namespace gossamer
