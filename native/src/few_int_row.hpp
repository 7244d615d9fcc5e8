// SPDX-License-Identifier: Apache-2.0
// One row of the integer layout, weight by weight: what it says, without regard to speed.
#pragma once
#include <algorithm>

#include "gossamer/bf16.hpp"
#include "gossamer/fp16.hpp"
#include "gossamer/few_int.hpp"

namespace gossamer {

// Calls visit(column, value, scale, offset) for every stored weight of a row: scale x value + offset.
template <class Visit>
void each_weight(const FewIntView& view, int64_t row, Visit&& visit) {
  const auto mask_of = [&](int64_t r, int64_t s) { return view.masks ? view.masks[r * view.steps + s] : ~uint64_t{0}; };
  const auto count_of = [&](int64_t r, int64_t s) { return int64_t{__builtin_popcountll(mask_of(r, s))}; };
  const uint8_t* values = view.values + view.unit_starts[row / kIntRowUnit];
  for (int64_t r = row / kIntRowUnit * kIntRowUnit; r <= row; ++r)
    for (int64_t s = 0; s < view.steps; ++s) {
      const bool is_second = view.is_int4 && s % 2 == 1, is_first = view.is_int4 && !is_second && s + 1 < view.steps;
      const uint64_t mask = mask_of(r, s);
      for (int64_t j = 0, at = 0; r == row && j < kIntStep; ++j) {
        if (!(mask >> j & 1)) continue;
        const bool is_alone = !is_first && !is_second;
        const int byte = values[view.is_int4 && is_alone ? at / 2 : at];
        const int nibble = byte >> (is_second || (is_alone && at % 2) ? 4 : 0) & 15;
        const int64_t column = s * kIntStep + j, group = r * view.scales_of_row + scale_of_column(view, column);
        if (view.offsets && column < view.columns)
          visit(column, nibble, from_fp16(view.scales[group]), from_fp16(view.offsets[group]));
        else if (!view.offsets)
          visit(column, view.is_int4 ? nibble - 8 : byte - 128, view.is_int4 ? from_bf16(view.scales[group]) : view.row_scales[r], 0.0f);
        ++at;
      }
      if (is_second) values += std::max(count_of(r, s - 1), count_of(r, s));
      else if (!is_first) values += view.is_int4 ? (count_of(r, s) + 1) / 2 : count_of(r, s);
    }
}

}  // namespace gossamer
