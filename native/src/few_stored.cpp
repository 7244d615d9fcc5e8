// SPDX-License-Identifier: Apache-2.0
// Weights for few tokens that come from files: what kernels assume is checked once.
#include <cstring>

#include "gossamer/few_layout.hpp"
#include "gossamer/stored_weight.hpp"
#include "mask_bytes.hpp"

namespace gossamer {
namespace {

void expect(bool holds, const char* what) { StoredReader::expect(holds, what); }

int64_t value_bytes(ValueType type, int64_t count) {
  switch (type) {
    case ValueType::fp32: return count * 4;
    case ValueType::bf16: return count * 2;
    case ValueType::int8: return count;
    case ValueType::int4: break;
  }
  return (count + 1) / 2;
}

// `count` values in the order of the layout, and scales of every row (int8) or as many as a form has (int4).
void check_values(const FewView& view, const FewSizes& sizes, int64_t count, int64_t rows, int64_t num_scales) {
  expect(sizes.values == value_bytes(view.type, count) + kFewSpareBytes, "values do not fit the positions");
  expect(sizes.row_scales == (view.type == ValueType::int8 ? rows : 0), "there must be a scale for every row");
  expect(sizes.scales == (view.type == ValueType::int4 ? num_scales : 0), "scales do not fit the values");
}

void check_bitmask(const FewView& view, const FewSizes& sizes, int64_t kept) {
  expect(view.mask_stride == ceil_div(view.columns, kFewStep) * (kFewStep / 8), "rows of the mask have another width");
  expect(view.scale_span >= kFewStep && view.scale_span % kFewStep == 0, "scales must serve whole steps");
  expect(sizes.positions == view.rows * view.mask_stride && sizes.row_starts == view.rows + 1 && !sizes.scale_starts,
         "the mask has the wrong size");
  int64_t at = 0, found = 0;
  for (int64_t r = 0; r < view.rows; ++r) {
    expect(view.row_starts[r] == at, "rows do not begin where the mask says");
    const uint8_t* bits = view.positions + r * view.mask_stride;
    for (int64_t k = view.columns; k < view.mask_stride * 8; ++k)
      expect(!(bits[k / 8] >> (k % 8) & 1), "the mask has bits beyond the last column");
    const int64_t count = count_bits(bits, view.mask_stride);
    found += count;
    at += view.type == ValueType::int4 ? (count + 1) / 2 * 2 : count;
  }
  expect(view.row_starts[view.rows] == at && found == kept, "the mask keeps another number of weights");
  check_values(view, sizes, at, view.rows, view.rows * ceil_div(view.columns, view.scale_span));
}

void check_indexed(const FewView& view, const FewSizes& sizes, int64_t kept) {
  expect(view.scale_span >= 1, "scales must serve whole groups");
  expect(sizes.row_starts == view.rows + 1 && sizes.scale_starts == view.rows + 1, "rows have no beginnings");
  expect(view.row_starts[0] == 0 && view.scale_starts[0] == 0, "the first row does not begin at the beginning");
  int64_t found = 0;
  for (int64_t r = 0; r < view.rows; ++r) {
    const int64_t begin = view.row_starts[r], end = view.row_starts[r + 1];
    expect(begin <= end && end <= sizes.positions / kIndexedGroup, "rows do not follow one another");
    expect(view.scale_starts[r + 1] == view.scale_starts[r] + ceil_div(end - begin, view.scale_span),
           "scales do not fit the rows");
    int64_t first = 0, last = -1;
    for (int64_t g = begin; g < end; ++g) {
      const uint8_t* index = view.positions + g * kIndexedGroup;
      first += index[0];
      for (int64_t j = 0; j < kIndexedGroup; ++j) {
        const int64_t column = first + (j ? index[j] : 0);
        expect(column < view.columns, "an index leads out of the columns");
        if (is_indexed_step(index) || column <= last) continue;
        last = column;
        ++found;
      }
    }
  }
  const int64_t groups = view.row_starts[view.rows];
  expect(sizes.positions == groups * kIndexedGroup && found == kept, "the indices keep another number of weights");
  check_values(view, sizes, groups * kIndexedGroup, view.rows, view.scale_starts[view.rows]);
}

void check_nm(const FewView& view, const FewSizes& sizes, int64_t kept, bool is_exact) {
  expect(view.window >= 1 && view.slots >= 1 && view.slots <= view.window, "expected 1 <= N <= M");
  expect(view.lanes >= 8 && view.lanes % 8 == 0 && view.position_bits == nm_position_bits(view.window) && view.scale_span >= 1,
         "strips, positions or scales have no such size");
  const int64_t groups = ceil_div(view.columns, view.window), slots = groups * view.slots;
  const int64_t strips = ceil_div(view.rows, view.lanes), words = strips * slots * (view.lanes / 8);
  expect(sizes.positions == words * view.position_bits + kNmSparePositions && !sizes.row_starts && !sizes.scale_starts,
         "the positions have the wrong size");
  expect(is_exact ? kept == view.rows * slots : kept <= view.rows * slots, "the positions keep another number of weights");
  for (int64_t word = 0; word < words; ++word) {
    uint64_t eight = 0;
    std::memcpy(&eight, view.positions + word * view.position_bits, static_cast<size_t>(view.position_bits));
    const int64_t first = word / (view.lanes / 8) % slots / view.slots * view.window;
    for (int lane = 0; lane < 8; ++lane) {
      const int64_t position = eight >> (lane * view.position_bits) & ((1 << view.position_bits) - 1);
      expect(position < view.window && first + position < view.columns, "a position leads out of its window");
    }
  }
  const int64_t lanes = strips * view.lanes;
  check_values(view, sizes, lanes * slots, lanes, lanes * ceil_div(slots, view.scale_span));
}

}  // namespace

void check_few(const FewView& view, FewForm form, const FewSizes& sizes, int64_t kept, bool is_exact) {
  switch (form) {
    case FewForm::bitmask: return check_bitmask(view, sizes, kept);
    case FewForm::indexed: return check_indexed(view, sizes, kept);
    case FewForm::nm: return check_nm(view, sizes, kept, is_exact);
  }
}

}  // namespace gossamer
