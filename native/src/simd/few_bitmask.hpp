// SPDX-License-Identifier: Apache-2.0
// Few tokens, bitmask form: kept values are expanded to their columns and multiplied with x as it is.
// The alternative, compressing x to the kept values, has to be done again for every token.
#pragma once
#include "simd/few_types.hpp"

namespace gossamer {
namespace {

template <class V, class D, int T>
void bitmask_row(const RowEnd& end, int64_t row, int64_t token, const float* x) {
  const FewView& view = end.view;
  constexpr int kSteps = kFewStep / V::kLanes;
  constexpr int kSets = T == 1 ? kSteps : T == 2 ? 2 : 1;  // chains of FMAs, which take 4 cycles each
  constexpr uint32_t kMask = (1u << V::kLanes) - 1;
  const int64_t x_stride = few_x_stride(view);
  const uint8_t* mask = view.positions + row * view.mask_stride;
  const uint16_t* scale = view.scales;
  if (is_int4<D>) scale += row * ceil_div(view.columns, view.scale_span);
  int64_t at = view.row_starts[row];
  typename V::Type acc[T][kSets];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
    for (int s = 0; s < kSets; ++s) acc[t][s] = V::zero();
  for (int64_t block = 0; block < view.columns; block += view.scale_span) {
    const int64_t block_end = is_int4<D> && view.columns - block > view.scale_span ? block + view.scale_span
                                                                                    : view.columns;
    typename V::Type unit = V::zero();
    if (is_int4<D>) unit = V::set1(bf16_to_float(*scale++) * Int4::kUnit);
    for (int64_t k = block; k < block_end; k += kFewStep) {
      const uint32_t bits = load_u32(mask + k / 8);
#pragma GCC unroll 8
      for (int s = 0; s < kSteps; ++s) {
        const uint32_t step = bits >> (s * V::kLanes) & kMask;
        typename V::Type w = V::expand(D{}, step, view.values, at);
        if (is_int4<D>) w = V::mul(w, unit);
        at += __builtin_popcount(step);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
          acc[t][s % kSets] = V::fma(w, V::load(x + t * x_stride + k + s * V::kLanes), acc[t][s % kSets]);
      }
    }
    if (!is_int4<D>) break;
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int s = 1; s < kSets; ++s) acc[t][0] = V::add(acc[t][0], acc[t][s]);
    end.store(D{}, row, token + t, V::sum(acc[t][0]), V::kExpandedInt8);
  }
}

template <class V, class D>
void bitmask(const FewView& view, const LinearCall& call, int64_t first_row, int64_t last_row, float* x) {
  const RowEnd end{view, call};
  const int64_t x_stride = few_x_stride(view);
  for (int64_t first = 0; first < call.tokens; first += kFewTokens) {
    const int64_t left = call.tokens - first, tokens = left < kFewTokens ? left : kFewTokens;
    copy_x(view, call, first, tokens, x);
    for (int64_t row = first_row; row < last_row; ++row) switch (padded_tokens(tokens)) {
        case 1: bitmask_row<V, D, 1>(end, row, first, x); break;
        case 2: bitmask_row<V, D, 2>(end, row, first, x); break;
        case 4: bitmask_row<V, D, 4>(end, row, first, x); break;
        case 8: bitmask_row<V, D, 8>(end, row, first, x); break;
        default:
          bitmask_row<V, D, 8>(end, row, first, x);
          bitmask_row<V, D, 8>(end, row, first + 8, x + 8 * x_stride);
      }
  }
  finish(call, first_row, last_row);
}

}  // namespace
}  // namespace gossamer
