// SPDX-License-Identifier: Apache-2.0
// One row of the integer layout, weight by weight: what it says, without regard to speed.
#pragma once
#include "gossamer/bf16.hpp"
#include "gossamer/few_int.hpp"

namespace gossamer {

// Calls visit(column, value, scale) for every stored weight of a row.
template <class Visit>
void each_weight(const FewIntView& view, int64_t row, Visit&& visit) {
  const int64_t unit_row = row / kIntRowUnit * kIntRowUnit;
  const uint8_t* values = view.values + view.unit_starts[row / kIntRowUnit];
  for (int64_t r = unit_row; r <= row; ++r)
    for (int64_t s = 0; s < view.steps; ++s) {
      const uint64_t mask = view.masks ? view.masks[r * view.steps + s] : ~uint64_t{0};
      int64_t at = 0;
      for (int64_t j = 0; j < kIntStep; ++j) {
        if (!(mask >> j & 1)) continue;
        if (r == row) {
          const int nibble = values[at / 2] >> (at % 2 * 4) & 15;
          const int value = view.is_int4 ? (nibble < 8 ? nibble : nibble - 16) : static_cast<int8_t>(values[at]);
          const float scale =
              view.is_int4 ? from_bf16(view.scales[r * view.scales_of_row + s / view.span]) : view.row_scales[r];
          visit(s * kIntStep + j, value, scale);
        }
        ++at;
      }
      values += view.is_int4 ? (at + 1) / 2 : at;
    }
}

}  // namespace gossamer
