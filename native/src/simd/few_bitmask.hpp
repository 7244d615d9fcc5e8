// SPDX-License-Identifier: Apache-2.0
// Few tokens, bitmask form: kept values are expanded to their columns and multiplied with x as it is.
// The alternative, compressing x to the kept values, has to be done again for every token.
#pragma once
#include "simd/few_types.hpp"

namespace gossamer {
namespace {

// Load ports are what it waits for: values, table, x. Two rows that share the load of x were 4 % faster
// from cache, but slower from memory: two streams of values, each half as fast.
template <class V, class D, int T>
void bitmask_row(const RowEnd& end, int64_t row, int64_t token, const float* x) {
  const FewView& view = end.view;
  constexpr int kSteps = kFewStep / V::kLanes;
  constexpr int kSets = T == 1 ? kSteps : T == 2 ? 2 : 1;  // chains of FMAs, which take 4 cycles each
  const int64_t x_stride = few_x_stride(view), scales_of_row = ceil_div(view.columns, view.scale_span);
  const uint8_t* values = view.values;
  const uint8_t* mask = view.positions + row * view.mask_stride;
  uint64_t at = static_cast<uint64_t>(view.row_starts[row]);
  typename V::Type unit = V::zero(), acc[T][kSets];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
    for (int s = 0; s < kSets; ++s) acc[t][s] = V::zero();
  const auto columns = [&](int64_t first, int64_t last) __attribute__((always_inline)) {
    for (int64_t k = first; k < last; k += kFewStep) {
      const uint32_t bits = load_u32(mask + k / 8);
      prefetch(values + at * D::kBits / 8);
#pragma GCC unroll 8
      for (int s = 0; s < kSteps; ++s) {
        typename V::Type w = V::expand(D{}, bits, s, values, at);
        if (is_int4<D>) w = V::mul(w, unit);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
          acc[t][s % kSets] = V::fma(w, V::load(x + t * x_stride + k + s * V::kLanes), acc[t][s % kSets]);
      }
    }
  };
  if (is_int4<D>) {
    for (int64_t block = 0; block < scales_of_row; ++block) {
      unit = V::set1(from_bf16(view.scales[row * scales_of_row + block]) * Int4::kUnit);
      columns(block * view.scale_span, block + 1 < scales_of_row ? (block + 1) * view.scale_span : view.columns);
    }
  } else {
    columns(0, view.columns);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
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
        default:  // the second half finds the row in L1
          bitmask_row<V, D, 8>(end, row, first, x);
          bitmask_row<V, D, 8>(end, row, first + 8, x + 8 * x_stride);
      }
  }
  finish(call, first_row, last_row);
}

}  // namespace
}  // namespace gossamer
