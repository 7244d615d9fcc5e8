// SPDX-License-Identifier: Apache-2.0
// The panel kernel, once, over a vector type V that the AVX2 and AVX-512 files supply:
//   V::Type, V::kLanes, V::zero(), V::broadcast(const float*), V::load(const float*),
//   V::load4(const float*)   four floats repeated in every 128-bit lane; this and broadcast also from
//                            bf16 (const uint16_t*),
//   V::splat(four, i)        the i-th of them everywhere,
//   V::store(float*, Type), V::fma(a, b or const float* b, c), V::add(a, b)
#pragma once
#include <immintrin.h>

#include "gossamer/panel.hpp"
#include "simd/activation.hpp"
#include "simd/transpose8.hpp"

namespace gossamer {

struct NothingAhead {
  void ask(int64_t) const {}
};

// x of the next slab: one line per group of rows is asked into L2 while this slab is used up. Rows of a
// slab are too short for the processor to see them coming. 3 % (geometric mean) at 768x768 and 768x3072,
// nothing seen at 1536x576. Asking for the lines of y brought nothing, writing y past the caches cost up to
// 20 %. Not bounded by the last column: a form with two comparisons gained nothing.
template <int WIDTH>
struct SlabAhead {
  uintptr_t first;  // no pointer: what is asked for may lie outside x
  int64_t stride, line;

  __attribute__((always_inline)) void ask(int64_t group) const {
    const uintptr_t at = first + static_cast<uintptr_t>(group % WIDTH * stride + (line + group / WIDTH) * 64);
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }
};

// Adds one column block to the accumulators of a row tile, tile[row][NV vectors]. Column offsets are
// multiplied by SCALE to give bytes into the slab.
//
// G rows go side by side (see PanelView). FMAs of one accumulator depend on each other (4 cycles),
// so narrow panels use SETS independent accumulators in turn: with 4 chains instead of 8, 32
// tokens ran at half speed. The order of additions is thus fixed by the layout and the width of
// the token tile, never by the number of threads.
//
// Panels may be wider than the tokens in use: rows are WIDTH floats apart, of which NV vectors count.
template <class V, int G, int NV, int SETS, int SCALE = NV * V::kLanes / 8, class Value = float,
          class Ahead = NothingAhead, int WIDTH = NV * V::kLanes>
void add_block(const PanelView& view, const PanelBlock& block, const float* slab, float* tile,
               const float* bias, Ahead ahead = {}) {
  const Value* value = values_of<Value>(view) + block.first_value;
  const uint16_t* offset = view.offsets + block.first_value;
  const uint16_t* ids = view.row_ids + block.first_row;
  const uint16_t* counts = view.row_counts + block.first_row;
  const char* base = reinterpret_cast<const char*>(slab);
  for (int64_t i = 0; i < block.num_rows; i += G, ids += G, counts += G) {
    const int count = counts[0];
    ahead.ask(i / G);
    typename V::Type acc[SETS][G][NV];
    float* row[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      row[g] = tile + static_cast<int64_t>(ids[g]) * WIDTH;
#pragma GCC unroll 8
      for (int q = 0; q < NV; ++q) {
        acc[0][g][q] = bias ? V::broadcast(bias + ids[g]) : V::load(row[g] + q * V::kLanes);
#pragma GCC unroll 8
        for (int s = 1; s < SETS; ++s) acc[s][g][q] = V::zero();
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      // The next rows are elsewhere in L2: asking for them now is worth 3 %.
      const char* next = reinterpret_cast<const char*>(tile + static_cast<int64_t>(ids[G + g]) * WIDTH);
#pragma GCC unroll 8
      for (int line = 0; line < NV * V::kLanes * 4; line += 64) _mm_prefetch(next + line, _MM_HINT_T0);
    }
    const auto step = [&](int j, int g, typename V::Type w, int set) __attribute__((always_inline)) {
      const float* x = reinterpret_cast<const float*>(base + static_cast<size_t>(offset[j * G + g]) * SCALE);
#pragma GCC unroll 8
      for (int q = 0; q < NV; ++q) acc[set][g][q] = V::fma(w, x + q * V::kLanes, acc[set][g][q]);
    };
    int j = 0;
    for (; j + 4 <= count; j += 4) {
      // Four weights come with one load and are spread by shuffles: the load ports are what the
      // FMAs wait for, and a broadcast from memory each would cost one more in nine.
      typename V::Type four = V::zero();
#pragma GCC unroll 8
      for (int i = 0; i < 4 * G; ++i) {
        if (i % 4 == 0) four = V::load4(value + j * G + i);
        step(j + i / G, i % G, V::splat(four, i % 4), i / G % SETS);
      }
    }
    // At most three are left. Rows are sorted by count, so these branches repeat and predict well.
#pragma GCC unroll 3
    for (int left = 0; left < 3; ++left) {
      if (j + left >= count) break;
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        step(j + left, g, V::broadcast(value + (j + left) * G + g), left % SETS);
    }
    value += count * G;
    offset += count * G;
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int q = 0; q < NV; ++q) {
#pragma GCC unroll 8
        for (int s = 1; s < SETS; ++s) acc[0][g][q] = V::add(acc[0][g][q], acc[s][g][q]);
        V::store(row[g] + q * V::kLanes, acc[0][g][q]);
      }
  }
}

// Accumulator rows turned back at a time: 64 of 64 tokens are 16 KiB, half of L1.
constexpr int64_t kRowsTurned = 64;

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// One slab of the panel. Tokens outside and columns inside: the other order walks 64 rows whose
// lines share a few L1 sets.
template <int WIDTH>
static inline void turn_slab(const PanelView& view, const LinearCall& call, TokenTile tokens,
                             int64_t first_column, float* slab) {
  const float* x = call.x + tokens.first * call.x_stride + first_column;
  const int64_t columns = smaller(view.block_columns, view.columns - first_column);
  for (int t = 0; t < WIDTH; t += 8)
    tokens8_to_panel(x + t * call.x_stride, call.x_stride, tokens.num_tokens - t, columns, slab + t, WIDTH);
}

// The lines of x from `first_column` on that a row tile asks for; `line` of each token came before. Where
// there are none left it asks for the slab in use, which is there already.
template <int WIDTH>
static inline SlabAhead<WIDTH> slab_ahead(const PanelView& view, const LinearCall& call, TokenTile tokens,
                                          int64_t first_column, int64_t line, const float* slab) {
  const int64_t columns = smaller(view.block_columns, view.columns - first_column);
  if (tokens.num_tokens < WIDTH || line * 16 >= columns) return {reinterpret_cast<uintptr_t>(slab), 0, 0};
  const float* x = call.x + tokens.first * call.x_stride + first_column;
  return {reinterpret_cast<uintptr_t>(x), call.x_stride * 4, line};
}

static inline void load_bias(const PanelView& view, const LinearCall& call, int64_t part, float* bias) {
  const int64_t num_rows = rows_of_tile(view, part);
  for (int64_t i = 0; i < accumulator_rows(view); ++i) bias[i] = 0.0f;
  if (call.bias)
    for (int64_t i = 0; i < num_rows; ++i) bias[i] = call.bias[part * view.tile_rows + i];
}

// Activation, and the accumulators of a row tile back to [token][row].
template <int WIDTH>
static inline void finish_tile(const PanelView& view, const LinearCall& call, TokenTile tokens, int64_t part,
                               float* tile, const float* bias) {
  const int64_t row0 = part * view.tile_rows, num_rows = rows_of_tile(view, part);
  if (view.num_blocks == 0)
    for (int64_t i = 0; i < num_rows * WIDTH; ++i) tile[i] = bias[i / WIDTH];
  activate(tile, num_rows * WIDTH, call.activation);
  float* y = call.y + tokens.first * call.y_stride + row0;
  for (int64_t r = 0; r < num_rows; r += kRowsTurned)
    for (int t = 0; t < tokens.num_tokens; t += 8)
      tile_to_tokens8(tile + r * WIDTH + t, WIDTH, smaller(8, tokens.num_tokens - t),
                      smaller(kRowsTurned, num_rows - r), y + t * call.y_stride + r, call.y_stride);
}

template <class V, int G, int NV, int SETS, class Value>
void panel_tile(const PanelView& view, const LinearCall& call, TokenTile tokens, int64_t first_tile,
                int64_t last_tile, float* scratch) {
  constexpr int kWidth = NV * V::kLanes;
  const bool slabs = goes_by_slabs(view, kWidth);
  const int64_t tile_rows = accumulator_rows(view), rows = (slabs ? last_tile - first_tile : 1) * tile_rows;
  float* panel = scratch;
  float* tile = panel + (slabs ? view.block_columns : view.columns) * kWidth;
  float* bias = tile + rows * kWidth;
  const auto add = [&](int64_t part, int64_t b, const float* slab, float* into, const float* start,
                       auto ahead) {
    add_block<V, G, NV, SETS, kWidth / 8, Value>(view, view.blocks[part * view.num_blocks + b], slab, into,
                                                 b ? nullptr : start, ahead);
  };
  if (slabs) {
    for (int64_t part = first_tile; part < last_tile; ++part)
      load_bias(view, call, part, bias + (part - first_tile) * tile_rows);
    for (int64_t b = 0; b < view.num_blocks; ++b) {
      turn_slab<kWidth>(view, call, tokens, b * view.block_columns, panel);
      for (int64_t part = first_tile; part < last_tile; ++part) {
        const int64_t row = (part - first_tile) * tile_rows;
        add(part, b, panel, tile + row * kWidth, bias + row,
            slab_ahead<kWidth>(view, call, tokens, (b + 1) * view.block_columns, row / G / kWidth, panel));
      }
    }
    for (int64_t part = first_tile; part < last_tile; ++part) {
      const int64_t row = (part - first_tile) * tile_rows;
      finish_tile<kWidth>(view, call, tokens, part, tile + row * kWidth, bias + row);
    }
    return;
  }
  for (int64_t k = 0; k < view.columns; k += view.block_columns)
    turn_slab<kWidth>(view, call, tokens, k, panel + k * kWidth);
  for (int64_t part = first_tile; part < last_tile; ++part) {
    load_bias(view, call, part, bias);
    for (int64_t b = 0; b < view.num_blocks; ++b)
      add(part, b, panel + b * view.block_columns * kWidth, tile, bias, NothingAhead{});
    finish_tile<kWidth>(view, call, tokens, part, tile, bias);
  }
}

// Pure FMA rate: twelve chains in registers.
template <class V>
double ceiling_fma(int64_t repeats) {
  alignas(64) static float sink[V::kLanes];
  alignas(64) static const float half[V::kLanes] = {0.5f};
  typename V::Type acc[12];
#pragma GCC unroll 12
  for (int q = 0; q < 12; ++q) acc[q] = V::zero();
  typename V::Type w = V::broadcast(half), x = V::broadcast(half);
  for (int64_t i = 0; i < repeats; ++i) {
#pragma GCC unroll 12
    for (int q = 0; q < 12; ++q) {
      acc[q] = V::fma(w, x, acc[q]);
      asm volatile("" : "+v"(acc[q]));  // the chains are equal: keep the compiler from merging them
    }
  }
#pragma GCC unroll 12
  for (int q = 1; q < 12; ++q) acc[0] = V::add(acc[0], acc[q]);
  V::store(sink, acc[0]);
  return 2.0 * 12 * V::kLanes * static_cast<double>(repeats);
}

// The kernel's own mix on rows that never end: one broadcast, NV FMAs from a slab in L1.
template <class V, int NV, int SETS>
double ceiling_panel(int64_t repeats) {
  constexpr int kWidth = NV * V::kLanes, kColumns = 96, kWeights = 1024;
  static float values[kWeights];
  static uint16_t offsets[kWeights];
  static const uint16_t row_ids[] = {0, 0}, row_counts[] = {kWeights, 0};
  unsigned state = 12345;
  for (int i = 0; i < kWeights; ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = 0.5f;
    offsets[i] = static_cast<uint16_t>((state >> 16) % kColumns * kOffsetUnit);
  }
  const PanelView view = {1, kColumns, kColumns, 1, 1, 1, 1, nullptr, row_ids, row_counts, values, offsets, nullptr};
  alignas(64) static float slab[kColumns * kWidth], tile[kWidth];
  // Written first: untouched pages all map to one page of zeros, which misleads the L1's way
  // prediction and halves the rate.
  for (float& v : slab) v = 0.25f;
  for (int64_t i = 0; i < repeats; ++i)
    add_block<V, 1, NV, SETS>(view, {0, 0, 1}, slab, tile, nullptr);
  return 2.0 * kWidth * kWeights * static_cast<double>(repeats);
}

}  // namespace gossamer
