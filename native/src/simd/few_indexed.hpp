// SPDX-License-Identifier: Apache-2.0
// Few tokens, indexed form. One token: eight activations are loaded one by one into a vector, nine
// vector loads for eight weights where scalar multiply-adds take sixteen (1.5 times as long); vgatherdps
// took twice as long, blends no less. More tokens: x is turned feature-major, and a kept weight is one
// broadcast times a vector of tokens.
#pragma once
#include "simd/few_vec256.hpp"
#include "simd/transpose8.hpp"

namespace gossamer {
namespace {

// x of the eight weights of a group; x moves on to the first of them.
// The index bytes come in one register: the load ports are what this waits for.
inline __m256 gather8(const float*& x, uint64_t index) {
  x += index & 255;
  const auto next = [&]() __attribute__((always_inline)) { return x + ((index >>= 8) & 255); };
  const auto insert = [&](__m128& v, auto lane) __attribute__((always_inline)) {
    // With a memory operand, which GCC does not make of _mm_insert_ps and a load.
    asm("vinsertps %2, %1, %0, %0" : "+x"(v) : "m"(*next()), "i"(lane() << 4));
  };
  const auto four = [&](const float* first) __attribute__((always_inline)) {
    __m128 v = _mm_load_ss(first);
    insert(v, [] { return 1; });
    insert(v, [] { return 2; });
    insert(v, [] { return 3; });
    return v;
  };
  const __m128 low = four(x), high = four(next());
  return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}

// The values of group g, scaled if they are int4.
template <class D>
inline __m256 group_values(const FewView& view, int64_t row, int64_t g) {
  const __m256 w = Vec256::values(D{}, view.values + g * (kIndexedGroup * D::kBits / 8));
  if (!is_int4<D>) return w;
  const uint16_t* scale = view.scales + view.scale_starts[row];
  return Vec256::mul(w, Vec256::set1(from_bf16(scale[(g - view.row_starts[row]) / view.scale_span]) * Int4::kUnit));
}

template <class D>
void indexed_row(const RowEnd& end, int64_t row, int64_t token, const float* x) {
  const FewView& view = end.view;
  const int64_t last = view.row_starts[row + 1];
  int64_t g = view.row_starts[row];
  const uint8_t* index = view.positions + g * kIndexedGroup;
  __m256 acc[2] = {Vec256::zero(), Vec256::zero()};
  const auto group = [&](int set) __attribute__((always_inline)) {
    acc[set] = Vec256::fma(group_values<D>(view, row, g), gather8(x, load_u64(index)), acc[set]);
    index += kIndexedGroup;
    ++g;
  };
  while (g + 2 <= last) {
    prefetch(view.values + g * (kIndexedGroup * D::kBits / 8));
    group(0);
    group(1);
  }
  if (g < last) group(0);
  end.store(D{}, row, token, Vec256::sum(Vec256::add(acc[0], acc[1])));
}

// NV vectors of tokens side by side.
template <class V, class D, int NV>
void indexed_row_panel(const RowEnd& end, int64_t row, int64_t token, const float* panel) {
  const FewView& view = end.view;
  constexpr int kWidth = NV * V::kLanes, kSets = 4 / NV;
  const uint8_t* index = view.positions + view.row_starts[row] * kIndexedGroup;
  typename V::Type acc[kSets][NV];
#pragma GCC unroll 4
  for (int s = 0; s < kSets; ++s)
#pragma GCC unroll 2
    for (int q = 0; q < NV; ++q) acc[s][q] = V::zero();
  for (int64_t g = view.row_starts[row]; g < view.row_starts[row + 1]; ++g, index += kIndexedGroup) {
    alignas(32) float w[kIndexedGroup];
    Vec256::store(w, group_values<D>(view, row, g));
    panel += index[0] * kWidth;
#pragma GCC unroll 8
    for (int j = 0; j < kIndexedGroup; ++j) {
      const float* x = j ? panel + index[j] * kWidth : panel;
#pragma GCC unroll 2
      for (int q = 0; q < NV; ++q)
        acc[j % kSets][q] = V::fma(V::set1(w[j]), V::load(x + q * V::kLanes), acc[j % kSets][q]);
    }
  }
  float sums[kWidth];
#pragma GCC unroll 2
  for (int q = 0; q < NV; ++q) {
#pragma GCC unroll 4
    for (int s = 1; s < kSets; ++s) acc[0][q] = V::add(acc[0][q], acc[s][q]);
    V::store(sums + q * V::kLanes, acc[0][q]);
  }
  for (int t = 0; t < kWidth; ++t) end.store(D{}, row, token + t, sums[t]);
}

template <class V, class D>
void indexed(const FewView& view, const LinearCall& call, int64_t first_row, int64_t last_row, float* panel) {
  const RowEnd end{view, call};
  for (int64_t first = 0; first < call.tokens; first += kFewTokens) {
    const int64_t left = call.tokens - first, tokens = left < kFewTokens ? left : kFewTokens;
    const float* x = call.x + first * call.x_stride;
    if (tokens == 1) {
      for (int64_t row = first_row; row < last_row; ++row) indexed_row<D>(end, row, first, x);
      continue;
    }
    const int width = tokens <= V::kLanes ? V::kLanes : kFewTokens;
    for (int t = 0; t < width; t += 8)
      tokens8_to_panel(x + t * call.x_stride, call.x_stride, tokens - t, view.columns, panel + t, width);
    const auto run = width == V::kLanes ? indexed_row_panel<V, D, 1>
                                        : indexed_row_panel<V, D, kFewTokens / V::kLanes>;
    for (int64_t row = first_row; row < last_row; ++row) run(end, row, first, panel);
  }
  finish(call, first_row, last_row);
}

}  // namespace
}  // namespace gossamer
