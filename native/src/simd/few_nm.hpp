// SPDX-License-Identifier: Apache-2.0
// Few tokens, N:M: a strip of kLanes rows keeps N slots per window; one slot is a vector of values
// and, for every lane, the position of its activation among the M of the window.
#pragma once
#include "simd/few_types.hpp"

namespace gossamer {
namespace {

template <class V, class D, int W, int T>
void nm_strip(const RowEnd& end, int64_t first_row, int64_t last_row, int64_t token, const float* x) {
  const FewView& view = end.view;
  constexpr int kSets = T == 1 ? 4 : T == 2 ? 2 : 1;  // chains of FMAs: one per group in turn
  constexpr int64_t kPositionBytes = (W <= 4 ? 2 : W <= 8 ? 3 : W <= 16 ? 4 : 8) * V::kLanes / 8;
  constexpr int64_t kValueBytes = V::kLanes * D::kBits / 8;
  const int64_t x_stride = few_x_stride(view), num_groups = ceil_div(view.columns, view.window);
  const int64_t num_slots = num_groups * view.slots, strip = first_row / V::kLanes;
  const uint8_t* position = view.positions + strip * num_slots * kPositionBytes;
  const uint8_t* value = view.values + strip * num_slots * kValueBytes;
  const uint16_t* scale = view.scales + (is_int4<D> ? strip * ceil_div(num_slots, view.scale_span) * V::kLanes : 0);
  int64_t slots_of_scale = 0;
  typename V::Type unit = V::zero(), acc[T][kSets];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
    for (int s = 0; s < kSets; ++s) acc[t][s] = V::zero();
  const auto group = [&](const float* window, int set) __attribute__((always_inline)) {
    for (int64_t slot = 0; slot < view.slots; ++slot) {
      const typename V::Index at = V::template positions<W>(position);
      typename V::Type w = V::values(D{}, value);
      if (is_int4<D>) {
        if (slots_of_scale == 0) {
          unit = V::mul(V::values(Bf16{}, reinterpret_cast<const uint8_t*>(scale)), V::set1(Int4::kUnit));
          scale += V::kLanes;
          slots_of_scale = view.scale_span;
        }
        --slots_of_scale;
        w = V::mul(w, unit);
      }
      prefetch(value);
      position += kPositionBytes;
      value += kValueBytes;
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        acc[t][set] = V::fma(w, V::template pick<W>(window + t * x_stride, at), acc[t][set]);
    }
  };
  int64_t g = 0;
  for (; g + kSets <= num_groups; g += kSets)
#pragma GCC unroll 8
    for (int s = 0; s < kSets; ++s) group(x + (g + s) * view.window, s);
  for (; g < num_groups; ++g) group(x + g * view.window, 0);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int s = 1; s < kSets; ++s) acc[t][0] = V::add(acc[t][0], acc[t][s]);
    float sums[V::kLanes];
    V::store(sums, acc[t][0]);
    for (int64_t row = first_row; row < last_row; ++row) end.store(D{}, row, token + t, sums[row - first_row]);
  }
}

template <class V, class D, int W>
void nm_window(const FewView& view, const LinearCall& call, int64_t first_row, int64_t last_row, float* x) {
  const RowEnd end{view, call};
  const int64_t x_stride = few_x_stride(view);
  for (int64_t first = 0; first < call.tokens; first += kFewTokens) {
    const int64_t left = call.tokens - first, tokens = left < kFewTokens ? left : kFewTokens;
    copy_x(view, call, first, tokens, x);
    for (int64_t row = first_row; row < last_row; row += V::kLanes) {
      const int64_t stop = row + V::kLanes < last_row ? row + V::kLanes : last_row;
      switch (padded_tokens(tokens)) {
        case 1: nm_strip<V, D, W, 1>(end, row, stop, first, x); break;
        case 2: nm_strip<V, D, W, 2>(end, row, stop, first, x); break;
        case 4: nm_strip<V, D, W, 4>(end, row, stop, first, x); break;
        case 8: nm_strip<V, D, W, 8>(end, row, stop, first, x); break;
        default:
          nm_strip<V, D, W, 8>(end, row, stop, first, x);
          nm_strip<V, D, W, 8>(end, row, stop, first + 8, x + 8 * x_stride);
      }
    }
  }
  finish(call, first_row, last_row);
}

template <class V, class D>
void nm(const FewView& view, const LinearCall& call, int64_t first_row, int64_t last_row, float* x) {
  const auto run = view.window <= 4    ? nm_window<V, D, 4>
                   : view.window <= 8  ? nm_window<V, D, 8>
                   : view.window <= 16 ? nm_window<V, D, 16>
                                       : nm_window<V, D, 32>;
  run(view, call, first_row, last_row, x);
}

}  // namespace
}  // namespace gossamer
