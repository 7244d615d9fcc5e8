// SPDX-License-Identifier: Apache-2.0
// The loops of gemm.hpp over the vector types of int8_vec256.hpp, int8_vec512.hpp and int8_vec_vnni.hpp.
//
// Loops over registers are unrolled, those that fill and empty them included, and do nothing else: GCC gives up on long
// ones, keeps their sums in memory, and halves the speed.
#pragma once
#include <immintrin.h>

#include "dense/gemm.hpp"
#include "gossamer/encoder.hpp"
#include "simd/activate_tokens.hpp"

namespace gossamer {
namespace {  // built for one instruction set

__attribute__((always_inline)) inline int32_t dword_at(const void* p) {
  int32_t dword;
  __builtin_memcpy(&dword, p, sizeof dword);
  return dword;
}

// R rows and NV vectors of tokens. `ahead` is what the next tile reads.
template <class V, int R, int NV>
__attribute__((always_inline)) inline void add_panel_quads(const int8_t* w, const uint8_t* x, int64_t quads,
                                                           const int8_t* ahead, typename V::Int (&sum)[R][NV]) {
  for (int64_t k = 0; k < quads; ++k, w += kGemmRows * 4, x += kTileTokens * 4, ahead += R * 4) {
    typename V::Int tokens[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) tokens[v] = V::load(x + v * V::kBytes);
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto row = V::broadcast(dword_at(w + 4 * r));
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) sum[r][v] = V::dot(sum[r][v], tokens[v], row);
    }
  }
}

// One group against one block of quads, for NV vectors of tokens from a lane on. Sums wait as int32 in `out`.
template <class V, int R, int NV>
void panel_group(const GemmView& view, int64_t group, int64_t first_quad, int64_t lane, const int8_t* ahead,
                 const GemmPanel& panel) {
  constexpr int kLanes = V::kBytes / 4;
  const int64_t left = view.quads - first_quad, quads = left < kGemmQuads ? left : kGemmQuads;
  const int64_t row0 = group * kGemmRows, count = view.rows_of(group);
  const bool starts = first_quad == 0, ends = left <= kGemmQuads;
  for (int64_t r0 = 0; r0 < count; r0 += R) {
    alignas(64) float spare[R * kTileTokens];
    const int64_t rows = count - r0 < R ? count - r0 : R;
    float* const out = panel.out + (row0 + r0) * kTileTokens + lane;
    // Rows behind the last one have a place to go.
    float* const to = rows == R ? out : spare;
    typename V::Int sum[R][NV];
    if (starts) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) sum[r][v] = V::broadcast(view.row_starts[row0 + r0 + r]);
    } else {
      if (rows < R) __builtin_memcpy(spare, out, static_cast<size_t>(rows * kTileTokens - lane) * sizeof(float));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) sum[r][v] = V::load_sum(to + r * kTileTokens + v * kLanes);
    }
    add_panel_quads<V, R, NV>(view.quad(group, first_quad) + r0 * 4, panel.bytes + (first_quad * kTileTokens + lane) * 4,
                              quads, ahead + r0 * 4 * quads, sum);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) V::store(static_cast<void*>(to + r * kTileTokens + v * kLanes), sum[r][v]);
    for (int64_t r = 0; r < rows; ++r) {
      const auto scale = V::broadcast(view.row_scales[row0 + r0 + r]), bias = V::broadcast(panel.bias[row0 + r0 + r]);
      for (int v = 0; v < NV; ++v) {
        const int64_t at = r * kTileTokens + v * kLanes;
        const auto waits = V::load_sum(to + at);
        if (ends)
          V::store(out + at, V::scaled(waits, panel.token_scales + lane + v * kLanes, scale, bias));
        else if (to != out)
          V::store(static_cast<void*>(out + at), waits);
      }
    }
  }
}

// As many sums as there are registers, and no more vectors of tokens than hold one.
template <class V>
void panel_lanes(const GemmView& view, int64_t group, int64_t first_quad, const int8_t* ahead, const GemmPanel& panel) {
  constexpr int kLanes = V::kBytes / 4;
  if constexpr (kLanes == 16) {
    const auto run = panel.tokens <= 16   ? panel_group<V, 16, 1>
                     : panel.tokens <= 32 ? panel_group<V, 8, 2>
                     : panel.tokens <= 48 ? panel_group<V, 8, 3>
                                          : panel_group<V, 4, 4>;
    run(view, group, first_quad, 0, ahead, panel);
  } else if (panel.tokens <= kLanes) {
    panel_group<V, 8, 1>(view, group, first_quad, 0, ahead, panel);
  } else if (panel.tokens <= 2 * kLanes) {
    panel_group<V, 4, 2>(view, group, first_quad, 0, ahead, panel);
  } else {
    for (int64_t lane = 0; lane < panel.tokens; lane += 4 * kLanes)
      panel_group<V, 2, 4>(view, group, first_quad, lane, ahead, panel);
  }
}

template <class V>
void gemm_panel(const GemmView& view, int64_t first_group, int64_t last_group, const GemmPanel& panel) {
  int64_t first_quad = 0;
  do {
    const int64_t next_quad = first_quad + kGemmQuads;
    for (int64_t group = first_group; group < last_group; ++group) {
      const int8_t* ahead = group + 1 < last_group  ? view.quad(group + 1, first_quad)
                            : next_quad < view.quads ? view.quad(first_group, next_quad)
                                                     : view.quad(last_group, 0);
      panel_lanes<V>(view, group, first_quad, ahead, panel);
      if (next_quad >= view.quads)
        activate_tokens(panel.out + group * kGemmRows * kTileTokens, view.rows_of(group), panel.activation, panel.tokens);
    }
    first_quad = next_quad;
  } while (first_quad < view.quads);
}

// T tokens times G groups of rows.
template <class V, int G, int T>
void rows_tile(const GemmView& view, int64_t group, int64_t token, const GemmTokens& call) {
  constexpr int kLanes = V::kBytes / 4, kSplit = kGemmRows / kLanes, kVectors = G * kSplit;
  const uint8_t* x = call.bytes + token * view.quads * 4;
  typename V::Int sum[T][kVectors];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[t][v] = V::loadu(view.row_starts + group * kGemmRows + v * kLanes);
  const int8_t* w = view.quad(group, 0);
  const int64_t to_next = view.quads * kGemmRows * 4;
  for (int64_t k = 0; k < view.quads; ++k, w += kGemmRows * 4, x += 4 * T) {
    typename V::Int rows[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) rows[v] = V::loadu(w + v / kSplit * to_next + v % kSplit * V::kBytes);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const auto four = V::broadcast(dword_at(x + 4 * t));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[t][v] = V::dot(sum[t][v], four, rows[v]);
    }
  }
  const int64_t row0 = group * kGemmRows, left = view.rows - row0, count = left < G * kGemmRows ? left : G * kGemmRows;
  alignas(64) float tile[T][G * kGemmRows], bias[G * kGemmRows] = {}, scales[G * kGemmRows];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) V::store(static_cast<void*>(tile[t] + v * kLanes), sum[t][v]);
  if (call.bias) __builtin_memcpy(bias, call.bias + row0, static_cast<size_t>(count) * sizeof(float));
  __builtin_memcpy(scales, view.row_scales + row0, sizeof scales);
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < kVectors; ++v)
      V::store(tile[t] + v * kLanes, V::scaled(V::load_sum(tile[t] + v * kLanes), scales + v * kLanes,
                                               V::broadcast(call.scales[token + t]), V::load_floats(bias + v * kLanes)));
  activate(tile[0], T * G * kGemmRows, call.activation);
  for (int t = 0; t < T; ++t)
    __builtin_memcpy(call.y + (token + t) * call.y_stride + row0, tile[t], static_cast<size_t>(count) * sizeof(float));
}

template <class V>
using RowsTile = void (*)(const GemmView&, int64_t, int64_t, const GemmTokens&);

// Few tokens take more groups: chains of products must not wait for themselves.
template <class V>
struct RowsTiles {
  static constexpr bool kWide = V::kBytes == 64;
  static constexpr int kMost = kWide ? 12 : 4;
  static int groups(int64_t tokens) { return !kWide ? (tokens == 1 ? 4 : tokens == 2 ? 2 : 1) : tokens == 1 ? 8 : tokens <= 4 ? 4 : 2; }
  template <int G>
  static RowsTile<V> of(int64_t tokens) {
    static constexpr RowsTile<V> all[] = {
        rows_tile<V, G, 1>, rows_tile<V, G, 2>, rows_tile<V, G, 3>, rows_tile<V, G, 4>};
    return all[tokens - 1];
  }
  template <int G>
  static RowsTile<V> of_many(int64_t tokens) {
    static constexpr RowsTile<V> all[] = {rows_tile<V, G, 5>, rows_tile<V, G, 6>,  rows_tile<V, G, 7>,  rows_tile<V, G, 8>,
                                          rows_tile<V, G, 9>, rows_tile<V, G, 10>, rows_tile<V, G, 11>, rows_tile<V, G, 12>};
    return all[tokens - 5];
  }
  static RowsTile<V> find(int64_t groups, int64_t tokens) {
    if constexpr (kWide) {
      if (tokens > 4) return groups == 2 ? of_many<2>(tokens) : of_many<1>(tokens);
      if (groups == 8) return rows_tile<V, 8, 1>;
      return groups == 4 ? of<4>(tokens) : of<1>(tokens);
    } else {
      if (groups == 4) return rows_tile<V, 4, 1>;
      return groups == 2 ? rows_tile<V, 2, 2> : of<1>(tokens);
    }
  }
};

template <class V>
void gemm_rows(const GemmView& view, int64_t first_group, int64_t last_group, const GemmTokens& call) {
  using Tiles = RowsTiles<V>;
  if (call.tokens == 0) return;
  // The last tile is one of the largest; where there are several, they all want as many groups.
  const int wanted = Tiles::groups(call.tokens - call.first_of(call.tiles - 1));
  for (int64_t group = first_group; group < last_group;) {
    const int64_t groups = last_group - group >= wanted ? wanted : 1;
    for (int64_t i = 0; i < call.tiles; ++i)
      Tiles::find(groups, call.first_of(i + 1) - call.first_of(i))(view, group, call.first_of(i), call);
    group += groups;
  }
}

// One group against one block, over and over.
template <class V>
double gemm_ceiling(int64_t repeats) {
  alignas(64) static int8_t w[kGemmQuads * kGemmRows * 4];
  alignas(64) static uint8_t x[kGemmQuads * kTileTokens * 4];
  alignas(64) static float out[kGemmRows * kTileTokens], ones[kTileTokens];
  static const int32_t starts[kGemmRows] = {};
  __builtin_memset(w, 3, sizeof w);
  __builtin_memset(x, 0x3d, sizeof x);
  for (float& one : ones) one = 1.0f;
  const GemmView view = {kGemmRows, kGemmQuads * 4, kGemmQuads, 7, w, ones, starts};
  const GemmPanel panel = {x, ones, out, ones, Activation::none, kTileTokens};
  for (int64_t i = 0; i < repeats; ++i) panel_lanes<V>(view, 0, 0, w, panel);
  return 2.0 * sizeof w * kTileTokens * static_cast<double>(repeats);
}

// Of the activation bits of a weight.
template <class Bits7, class Bits8>
void gemm_panel_bits(const GemmView& view, int64_t first_group, int64_t last_group, const GemmPanel& panel) {
  (view.activation_bits == 7 ? gemm_panel<Bits7> : gemm_panel<Bits8>)(view, first_group, last_group, panel);
}
template <class Bits7, class Bits8>
void gemm_rows_bits(const GemmView& view, int64_t first_group, int64_t last_group, const GemmTokens& call) {
  (view.activation_bits == 7 ? gemm_rows<Bits7> : gemm_rows<Bits8>)(view, first_group, last_group, call);
}

}  // namespace
}  // namespace gossamer
