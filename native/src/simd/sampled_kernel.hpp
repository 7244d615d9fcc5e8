// SPDX-License-Identifier: Apache-2.0
// The sampled product, once, over a vector type V that the AVX2 and AVX-512 files supply:
//   V::Type, V::kLanes, V::zero(), V::load(const float*), V::mul(a, const float* b),
//   V::fma(a, const float* b, c), V::add(a, b), V::sum4(const Type (&)[4])   the sums of four vectors' lanes
#pragma once
#include <immintrin.h>

#include "gossamer/sampled.hpp"
#include "simd/transpose8.hpp"

namespace gossamer {

// Adds `num` <= 4 of `four` and touches nothing behind them: it may be another thread's.
__attribute__((always_inline)) static inline void add_first(float* sums, __m128 four, int num) {
  if (num == 4) {
    _mm_storeu_ps(sums, _mm_add_ps(_mm_loadu_ps(sums), four));
    return;
  }
  if (num >= 2) {
    __m64* pair = reinterpret_cast<__m64*>(sums);
    _mm_storel_pi(pair, _mm_add_ps(_mm_loadl_pi(_mm_setzero_ps(), pair), four));
  }
  if (num % 2 == 1) {
    const __m128 last = num == 3 ? _mm_movehl_ps(four, four) : four;
    _mm_store_ss(sums + num - 1, _mm_add_ss(_mm_load_ss(sums + num - 1), last));
  }
}

// Adds one column block to the sums of the kept weights of a row tile; tile[row][NV vectors] is dY. Column
// offsets are multiplied by SCALE to give bytes into the slab.
template <class V, int NV, int SCALE = NV * V::kLanes / 8>
void add_dots(const PanelView& view, const PanelBlock& block, const float* slab, const float* tile, float* sums) {
  constexpr int kWidth = NV * V::kLanes;
  const uint16_t* offset = view.offsets + block.first_value;
  const uint16_t* ids = view.row_ids + block.first_row;
  const uint16_t* counts = view.row_counts + block.first_row;
  const char* base = reinterpret_cast<const char*>(slab);
  float* sum = sums + block.first_value;
  for (int64_t i = 0; i < block.num_rows; ++i) {
    const int count = counts[i];
    if (count == 0) break;  // rows are sorted by count
    const float* row = tile + static_cast<int64_t>(ids[i]) * kWidth;
    typename V::Type grad[NV];
#pragma GCC unroll 8
    for (int q = 0; q < NV; ++q) grad[q] = V::load(row + q * V::kLanes);
    const char* next = reinterpret_cast<const char*>(tile + static_cast<int64_t>(ids[i + 1]) * kWidth);
#pragma GCC unroll 8
    for (int line = 0; line < kWidth * 4; line += 64) _mm_prefetch(next + line, _MM_HINT_T0);
    // Dot products of `num` <= 4 weights side by side, each in two chains: FMAs of a chain wait for
    // each other (4 cycles), and with four chains instead of eight the mix ran at 77 % of the rate.
    const auto dots = [&](int j, int num) __attribute__((always_inline)) {
      constexpr int kChains = NV > 1 ? 2 : 1;
      typename V::Type acc[4][kChains];
      const float* x[4];
#pragma GCC unroll 4
      for (int w = 0; w < num; ++w)
        x[w] = reinterpret_cast<const float*>(base + static_cast<size_t>(offset[j + w]) * SCALE);
#pragma GCC unroll 8
      for (int q = 0; q < NV; ++q)
#pragma GCC unroll 4
        for (int w = 0; w < num; ++w) {
          typename V::Type& chain = acc[w][q % kChains];
          chain = q < kChains ? V::mul(grad[q], x[w] + q * V::kLanes) : V::fma(grad[q], x[w] + q * V::kLanes, chain);
        }
      typename V::Type all[4];
#pragma GCC unroll 4
      for (int w = 0; w < 4; ++w)
        all[w] = w >= num ? V::zero() : kChains == 1 ? acc[w][0] : V::add(acc[w][0], acc[w][kChains - 1]);
      add_first(sum + j, V::sum4(all), num);
    };
    int j = 0;
    for (; j + 4 <= count; j += 4) dots(j, 4);
    // Rows are sorted by count, so this branch repeats and predicts well.
    switch (count - j) {
      case 3: dots(j, 3); break;
      case 2: dots(j, 2); break;
      case 1: dots(j, 1); break;
      default: break;
    }
    sum += count;
    offset += count;
  }
}

template <class V, int NV>
void sampled_tile(const PanelView& view, const SampledCall& call, TokenTile tokens, int64_t first_tile,
                  int64_t last_tile, float* scratch, float* sums) {
  constexpr int kWidth = NV * V::kLanes;
  float* panel = scratch;
  float* tile = panel + view.columns * kWidth;
  const float* x = call.x + tokens.first * call.x_stride;
  const float* grad = call.grad + tokens.first * call.grad_stride;
  // Columns are turned slab by slab, as in panel_tile.
  const auto turn = [&](const float* from, int64_t stride, int64_t columns, float* to) {
    for (int64_t k = 0; k < columns; k += view.block_columns) {
      const int64_t left = columns - k;
      for (int t = 0; t < kWidth; t += 8)
        tokens8_to_panel(from + t * stride + k, stride, tokens.num_tokens - t,
                         left < view.block_columns ? left : view.block_columns, to + k * kWidth + t, kWidth);
    }
  };
  turn(x, call.x_stride, view.columns, panel);
  for (int64_t part = first_tile; part < last_tile; ++part) {
    turn(grad + part * view.tile_rows, call.grad_stride, rows_of_tile(view, part), tile);
    for (int64_t b = 0; b < view.num_blocks; ++b)
      add_dots<V, NV>(view, view.blocks[part * view.num_blocks + b], panel + b * view.block_columns * kWidth,
                      tile, sums);
  }
}

// The kernel's own mix on a row that never ends: dot products with columns of a slab in L1.
template <class V, int NV>
double ceiling_sampled(int64_t repeats) {
  constexpr int kWidth = NV * V::kLanes, kColumns = 96, kWeights = 1024;
  static uint16_t offsets[kWeights];
  static const uint16_t row_ids[] = {0, 0}, row_counts[] = {kWeights, 0};
  unsigned state = 12345;
  for (uint16_t& offset : offsets) {
    state = state * 1664525u + 1013904223u;
    offset = static_cast<uint16_t>((state >> 16) % kColumns * kOffsetUnit);
  }
  const PanelView view = {1, kColumns, kColumns, 1, 1, 1, 1, nullptr, row_ids, row_counts, nullptr, offsets, nullptr};
  alignas(64) static float slab[kColumns * kWidth], tile[kWidth], sums[kWeights];
  // Written first: untouched pages all map to one page of zeros, which halves the rate.
  for (float& v : slab) v = 0.25f;
  for (int64_t i = 0; i < repeats; ++i) add_dots<V, NV>(view, {0, 0, 1}, slab, tile, sums);
  return 2.0 * kWidth * kWeights * static_cast<double>(repeats);
}

}  // namespace gossamer
