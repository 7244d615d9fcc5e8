// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "gossamer/few_layout.hpp"

namespace gossamer {
namespace {

constexpr int64_t kFarthest = 255;  // what an index byte can say

// Second and third byte of a group that only steps: no other has the same column twice there.
constexpr uint8_t kStepMark[] = {1, 1};

struct Group {
  int64_t first = 0, count = 0;
  int64_t columns[kIndexedGroup];
};

}  // namespace

// Groups lack weights at the end of a row and where the next weight is out of reach; what is missing
// is filled with zeros on the group's first column. A gap of more than 255 columns takes groups of
// zeros on the way.
FewLayout pack_indexed(const KeptWeight& weight, const FewOptions& options) {
  FewLayout layout;
  layout.view.rows = weight.rows;
  layout.view.columns = weight.columns;
  layout.view.type = options.type;
  layout.view.scale_span = options.scale_group / kIndexedGroup;
  layout.row_starts.push_back(0);
  layout.scale_starts.push_back(0);
  const bool is_int4 = options.type == ValueType::int4;
  StoredValues stored;
  int64_t num_groups = 0;
  const float* value = weight.values;
  for (int64_t r = 0; r < weight.rows; ++r) {
    int64_t before = 0;
    Group group;
    const auto flush = [&] {
      const int64_t in_row = num_groups - layout.row_starts.back();
      const int64_t scale = is_int4 ? layout.scale_starts.back() + in_row / layout.view.scale_span : r;
      layout.positions.push_back(static_cast<uint8_t>(group.first - before));
      for (int64_t j = 1; j < kIndexedGroup; ++j)
        layout.positions.push_back(static_cast<uint8_t>(j < group.count ? group.columns[j] - group.first : 0));
      for (int64_t j = 0; j < kIndexedGroup; ++j) stored.add(j < group.count ? *value++ : 0.0f, scale);
      before = group.first;
      group = Group{};
      ++num_groups;
    };
    for (int64_t k = 0; k < weight.columns; ++k) {
      if (!weight.keeps(r, k)) continue;
      if (group.count == kIndexedGroup || (group.count && k - group.first > kFarthest)) flush();
      while (!group.count && k - before > kFarthest) {
        group.first = before + kFarthest;
        flush();
        std::copy_n(kStepMark, 2, layout.positions.end() - 7);
      }
      if (!group.count) group.first = k;
      group.columns[group.count++] = k;
      ++layout.kept;
    }
    if (group.count) flush();
    layout.scale_starts.push_back(layout.scale_starts.back() +
                                  ceil_div(num_groups - layout.row_starts.back(), layout.view.scale_span));
    layout.row_starts.push_back(num_groups);
  }
  stored.num_scales = is_int4 ? layout.scale_starts.back() : weight.rows;
  encode_values(stored, layout);
  return layout;
}

// A kept weight stands on a later column than the one before it; a filler does not.
void unpack_indexed(const FewView& view, float* values, uint8_t* mask_bits) {
  const int64_t stride = (view.columns + 7) / 8;
  for (int64_t r = 0; r < view.rows; ++r) {
    int64_t first = 0, last = -1;
    for (int64_t g = view.row_starts[r]; g < view.row_starts[r + 1]; ++g) {
      const uint8_t* index = view.positions + g * kIndexedGroup;
      first += index[0];
      if (is_indexed_step(index)) continue;
      for (int64_t j = 0; j < kIndexedGroup; ++j) {
        const int64_t k = first + (j ? index[j] : 0);
        if (k <= last) continue;
        last = k;
        mask_bits[r * stride + (k >> 3)] |= static_cast<uint8_t>(1u << (k & 7));
        std::memcpy(values++, view.values + (g * kIndexedGroup + j) * 4, 4);
      }
    }
  }
}

}  // namespace gossamer
