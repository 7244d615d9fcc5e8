// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "gossamer/conv_layout.hpp"
#include "in_parallel.hpp"
#include "kept_columns.hpp"

namespace gossamer {
FreshPanel fresh_conv_panel(const KeptWeight& weight, int64_t block_columns, const std::vector<ConvColumn>& columns,
                            int num_threads) {
  const PanelShape shape = {0.0, block_columns, 1};
  std::vector<int64_t> row_start = row_starts(weight);
  PanelLayout layout = cut_panel(weight.rows, weight.columns, row_start[weight.rows], &shape);
  std::vector<uint16_t> counts(layout.num_blocks * weight.rows);
  in_parallel(weight.rows, num_threads, [&](int64_t row) {
    each_kept_column(weight, row, [&](int64_t k) { ++counts[columns[k].block * weight.rows + row]; });
  });
  FreshPanel panel = place_rows(std::move(layout), std::move(counts));
  panel.row_start = std::move(row_start);
  PanelLayout& to = panel.layout;
  if (weight.values) to.values.resize(to.offsets.size());
  in_parallel(weight.rows, num_threads, [&](int64_t row) {
    const float* value = weight.values ? weight.values + panel.row_start[row] : nullptr;
    int64_t block = -1, slot = 0;
    each_kept_column(weight, row, [&](int64_t k) {
      if (columns[k].block != block) {
        block = columns[k].block;
        slot = panel.first_slots[block * weight.rows + row];
      }
      to.offsets[slot] = columns[k].offset;
      if (value) to.values[slot] = *value++;
      ++slot;
    });
  });
  return panel;
}

}  // namespace gossamer
