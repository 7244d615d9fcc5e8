// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "gossamer/int8_window.hpp"
#include "gossamer/panel_layout.hpp"
#include "int8_codes.hpp"
#include "kept_columns.hpp"

namespace gossamer {
namespace {

struct Kept {
  int64_t column;
  int8_t code;
};

// The kept weights of the rows of a group, and how far each has come.
struct Group {
  std::array<std::vector<Kept>, kWindowRows> rows;
  std::array<size_t, kWindowRows> at{};

  // Of all rows before column `end`, or `end`.
  int64_t next_column(int64_t end) const {
    int64_t next = end;
    for (size_t r = 0; r < rows.size(); ++r)
      if (at[r] < rows[r].size()) next = std::min(next, rows[r][at[r]].column);
    return next;
  }
};

void add_step(Group& group, int64_t window, int64_t end, WindowLayout& layout) {
  const size_t begin = layout.steps.size();
  layout.steps.resize(begin + 2 * kWindowRows * 4, 0);
  layout.windows.push_back(static_cast<uint16_t>(window));
  const int64_t first = window * kWindowShift, last = std::min(first + kWindowBytes, end);
  for (size_t r = 0; r < group.rows.size(); ++r) {
    const std::vector<Kept>& row = group.rows[r];
    for (size_t i = 0; i < 4 && group.at[r] < row.size() && row[group.at[r]].column < last; ++i, ++group.at[r]) {
      const Kept& kept = row[group.at[r]];
      layout.steps[begin + r * 4 + i] = static_cast<uint8_t>(kept.code);
      layout.steps[begin + kWindowRows * 4 + r * 4 + i] = static_cast<uint8_t>(kept.column - first);
    }
  }
}

}  // namespace

WindowLayout pack_windows(const KeptWeight& weight, int activation_bits) {
  WindowLayout layout;
  layout.rows = weight.rows;
  layout.columns = weight.columns;
  layout.activation_bits = activation_bits;
  const WindowView shape = layout.view();
  layout.row_scales.assign(static_cast<size_t>(shape.groups() * kWindowRows), 1.0f);
  layout.row_starts.assign(static_cast<size_t>(shape.groups() * kWindowRows), 0);
  const std::vector<int64_t> starts = row_starts(weight);
  layout.kept = starts.back();
  for (int64_t g = 0; g < shape.groups(); ++g) {
    Group group;
    for (int64_t r = g * kWindowRows; r < std::min((g + 1) * kWindowRows, weight.rows); ++r) {
      const float* value = weight.values + starts[r];
      const RowCodes codes(value, starts[r + 1] - starts[r]);
      layout.row_scales[r] = codes.scale;
      each_kept_column(weight, r, [&](int64_t k) {
        const int8_t code = codes.of(*value++);
        layout.row_starts[r] -= code * activation_offset(activation_bits);
        if (code) group.rows[static_cast<size_t>(r % kWindowRows)].push_back({k, code});
      });
    }
    for (int64_t block = 0; block < shape.blocks(); ++block) {
      layout.first_steps.push_back(static_cast<int64_t>(layout.windows.size()));
      const int64_t end = std::min((block + 1) * kWindowBlock, weight.columns);
      for (int64_t next = group.next_column(end); next < end; next = group.next_column(end))
        add_step(group, next / kWindowShift, end, layout);
    }
  }
  layout.first_steps.push_back(static_cast<int64_t>(layout.windows.size()));
  return layout;
}

}  // namespace gossamer
