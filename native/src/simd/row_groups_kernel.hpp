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
  if constexpr (N <= NV) {
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

// Adds one slab of columns to the accumulators of a row tile, tile[row][NV vectors]. With `bias` they
// start from it instead of the tile.
template <class V, int N, int NV>
void add_groups(const RowGroupsView& view, const GroupBlock& block, int64_t num_groups, const float* slab,
                float* tile, const float* bias) {
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
    float* row[N];
    typename V::Type acc[N][NV];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      row[i] = group + view.choices[i] * kWidth;
      if (bias) {
#pragma GCC unroll 8
        for (int q = 0; q < NV; ++q) acc[i][q] = V::broadcast(bias + first_row[0] + view.choices[i]);
      } else {
        load_row<V, NV>(acc[i], row[i]);
      }
    }
    for (int64_t c = 0; c < view.num_choices; ++c, ++count) {
      if (c) {
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
      // Not unrolled: two columns at once need more registers than there are, and lost 20 %.
      const float* const end = value + static_cast<int64_t>(count[0]) * N;
      for (; value != end; value += N, ++offset) {
        const char* x = base + static_cast<size_t>(*offset) * kScale;
        if constexpr (N > 2) {
          // The slab is in L2: worth 5 to 10 %. With N = 2 there is no load to spare for it.
          const char* ahead = base + static_cast<size_t>(offset[kColumnsAhead]) * kScale;
#pragma GCC unroll 8
          for (int line = 0; line < kWidth * 4; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
        }
        add_column<V, N, NV>(acc, value, reinterpret_cast<const float*>(x));
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) store_row<V, NV>(acc[i], row[i]);
  }
}

// Columns turned and accumulator rows turned back at a time: they stay in L1 for all groups of 8 tokens.
constexpr int64_t kColumnsTurned = 128, kGroupRowsTurned = 64;

static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

template <class V, int N, int NV>
void row_groups_tile(const RowGroupsView& view, const LinearCall& call, TokenTile tokens, int64_t first_tile,
                     int64_t last_tile, float* scratch) {
  constexpr int kWidth = NV * V::kLanes;
  float* panel = scratch;
  float* tile = panel + view.columns * kWidth;
  float* bias = tile + (view.max_tile_rows + kMaxGroupKept) * kWidth;
  const float* x = call.x + tokens.first * call.x_stride;
  float* y = call.y + tokens.first * call.y_stride;
  for (int64_t k = 0; k < view.columns; k += kColumnsTurned)
    for (int t = 0; t < kWidth; t += 8)
      tokens8_to_panel(x + t * call.x_stride + k, call.x_stride, tokens.num_tokens - t,
                       lesser(kColumnsTurned, view.columns - k), panel + k * kWidth + t, kWidth);
  for (int64_t part = first_tile; part < last_tile; ++part) {
    const int64_t row0 = view.tile_rows[part], num_rows = view.tile_rows[part + 1] - row0;
    for (int64_t r = 0; r < num_rows + kMaxGroupKept; ++r)
      bias[r] = call.bias && r < num_rows ? call.bias[row0 + r] : 0.0f;
    const bool is_started = view.has_own_rows && view.num_slabs;
    for (int64_t r = 0; !is_started && r < num_rows + kMaxGroupKept; ++r)
#pragma GCC unroll 8
      for (int q = 0; q < NV; ++q) V::store(tile + r * kWidth + q * V::kLanes, V::broadcast(bias + r));
    for (int64_t s = 0; s < view.num_slabs; ++s)
      add_groups<V, N, NV>(view, view.blocks[part * view.num_slabs + s], view.tile_groups[part],
                           panel + s * view.slab_columns * kWidth, tile, s || !is_started ? nullptr : bias);
    activate(tile, num_rows * kWidth, call.activation);
    for (int64_t r = 0; r < num_rows; r += kGroupRowsTurned)
      for (int t = 0; t < tokens.num_tokens; t += 8)
        tile_to_tokens8(tile + r * kWidth + t, kWidth, lesser(8, tokens.num_tokens - t),
                        lesser(kGroupRowsTurned, num_rows - r), y + t * call.y_stride + row0 + r, call.y_stride);
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
  for (int64_t i = 0; i < repeats; ++i) add_groups<V, N, NV>(view, {0, 0}, 1, slab, tile, nullptr);
  return 2.0 * N * kWidth * kKept * static_cast<double>(repeats);
}

}  // namespace
}  // namespace gossamer
