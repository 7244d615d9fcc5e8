// SPDX-License-Identifier: Apache-2.0
#include "gossamer/row_groups_layout.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gossamer/bitmask.hpp"
#include "row_groups_weight.hpp"

namespace gossamer {
namespace {

// Accumulators of a row tile stay in L2 (see panel_layout.cpp).
constexpr int64_t kMaxTileRows = 512;
// Taller blocks are cut: rows of a tile stand in 16 bits, and tiles hold whole spans.
constexpr int64_t kMaxSpanRows = 256;
constexpr int64_t kMaxSlabColumns = 1024;  // 16-bit offsets, kOffsetUnit bytes each

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns of a slab. N = 2 takes every vector it loads from L1 as long as runs of columns are long.
// N = 3 and 4 load less and may have their slabs in L2: 1024 columns instead of 340 gained 7 % at
// 80 % and 25 % at 95 % sparsity. `run_fraction`: part of the columns a group adds between two
// exchanges of accumulators.
int64_t slab_limit(const RowGroupsKernels& kernels, int64_t num_kept, double run_fraction) {
  constexpr int64_t kL2SlabFloats = 24576;
  const int64_t floats = num_kept > 2 || run_fraction < 0.125 ? kL2SlabFloats : kMaxSlabFloats;
  const int64_t width = kernels.max_vectors[num_kept - kMinGroupKept] * kernels.lanes;
  return std::min<int64_t>(floats / width, kMaxSlabColumns);
}

// The wider of equally wasteful heights: R = 5 goes as 3 + 3, R = 8 as 4 + 4.
int64_t group_height(int64_t block_rows) {
  int64_t best = kMinGroupKept;
  for (int64_t height = best; height <= kMaxGroupKept; ++height)
    if (ceil_div(block_rows, height) * height <= ceil_div(block_rows, best) * best) best = height;
  return best;
}

// The rows of one tile in dense form.
std::vector<float> dense_rows(const KeptWeight& weight, int64_t first, int64_t last, const float** value) {
  std::vector<float> dense(static_cast<size_t>((last - first) * weight.columns), 0.0f);
  for (int64_t r = first; r < last; ++r)
    for (int64_t k = 0; k < weight.columns; ++k)
      if (weight.keeps(r, k)) dense[(r - first) * weight.columns + k] = *(*value)++;
  return dense;
}

// Rows inside a tile: those from `own` to `end` are the group's, others have zeros for weights.
struct Group {
  int64_t first_row, own, end;
};

// Where spans begin, and where the last one ends: each lies inside one block and holds whole groups.
std::vector<int64_t> span_starts(int64_t rows, int64_t block_rows) {
  std::vector<int64_t> starts;
  for (int64_t block = 0; block < rows; block += block_rows)
    for (int64_t r = block; r < std::min(block + block_rows, rows); r += kMaxSpanRows) starts.push_back(r);
  starts.push_back(rows);
  return starts;
}

}  // namespace

RowGroupsWeight::RowGroupsWeight(const KeptWeight& weight, const RowGroupsShape& shape,
                                 const RowGroupsKernels& chosen)
    : kernels(chosen),
      num_kept(shape.num_kept),
      slab_columns(shape.slab_columns),
      block_rows(shape.block_rows),
      has_own_rows(shape.choices.size() == 1) {
  rows = weight.rows;
  columns = weight.columns;
  num_slabs = ceil_div(columns, slab_columns);
  for (const auto& choice : shape.choices) {
    int64_t entry = 0;
    while (!choices.empty() && entry + 1 < num_kept && choices[choices.size() - num_kept + entry] == choice[entry])
      ++entry;
    changed.push_back(static_cast<uint8_t>(entry));
    choices.insert(choices.end(), choice.begin(), choice.end());
  }
  // At least two tiles where there are rows for it, so that two threads can share one token tile.
  const int64_t wanted_tiles = std::max<int64_t>(ceil_div(rows, kMaxTileRows), rows >= 128 ? 2 : 1);
  const int64_t wanted_rows = ceil_div(rows, wanted_tiles);
  const std::vector<int64_t> spans = span_starts(rows, shape.block_rows);
  const float* value = weight.values;
  std::vector<std::vector<int64_t>> kept_columns(shape.choices.size());
  for (size_t span = 0; span + 1 < spans.size();) {
    const int64_t first = spans[span];
    std::vector<Group> groups;
    for (; span + 1 < spans.size() && (groups.empty() || spans[span + 1] - first <= wanted_rows); ++span) {
      const int64_t start = spans[span] - first, end = spans[span + 1] - first;
      for (int64_t own = start; own < end; own += shape.group_rows) {
        groups.push_back({std::max(start, std::min(own, end - shape.group_rows)), own, end});
        // Rows of another group: those before its own, or those behind its span.
        has_own_rows &= groups.back().first_row == own && (own + shape.group_rows <= end || spans[span + 1] == rows);
      }
    }
    const int64_t last = spans[span];
    const std::vector<float> dense = dense_rows(weight, first, last, &value);
    tile_rows.push_back(first);
    tile_groups.push_back(static_cast<int64_t>(groups.size()));
    max_tile_rows = std::max(max_tile_rows, last - first);
    const auto code = [&](const Group& group, int64_t k) {
      uint32_t bits = 0;
      for (int64_t i = 0; i < shape.group_rows && group.first_row + i < group.end; ++i)
        bits |= static_cast<uint32_t>(weight.keeps(first + group.first_row + i, k)) << i;
      return bits;
    };
    for (int64_t k0 = 0; k0 < columns; k0 += slab_columns) {
      const int64_t k1 = std::min(k0 + slab_columns, columns);
      std::vector<int64_t> totals(groups.size(), 0), order(groups.size());
      for (size_t g = 0; g < groups.size(); ++g)
        for (int64_t k = k0; k < k1; ++k) totals[g] += code(groups[g], k) != 0;
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return totals[a] > totals[b]; });
      blocks.push_back({static_cast<int64_t>(first_rows.size()), static_cast<int64_t>(offsets.size())});
      for (const int64_t which : order) {
        const Group& group = groups[which];
        for (auto& list : kept_columns) list.clear();
        for (int64_t k = k0; k < k1; ++k)
          if (const uint32_t bits = code(group, k)) kept_columns[shape.choice_of(bits)].push_back(k);
        first_rows.push_back(static_cast<uint16_t>(group.first_row));
        for (size_t c = 0; c < kept_columns.size(); ++c) {
          counts.push_back(static_cast<uint16_t>(kept_columns[c].size()));
          for (const int64_t k : kept_columns[c]) {
            offsets.push_back(static_cast<uint16_t>((k - k0) * kOffsetUnit));
            for (int64_t i = 0; i < num_kept; ++i) {
              const int64_t row = group.first_row + shape.choices[c][i];
              values.push_back(group.own <= row && row < group.end ? dense[row * columns + k] : 0.0f);
            }
          }
        }
      }
    }
  }
  kept = value - weight.values;
  tile_rows.push_back(rows);
  first_rows.push_back(0);
  offsets.resize(offsets.size() + kColumnsAhead, 0);
}

void RowGroupsWeight::unpack(float* out, uint8_t* mask_bits) const {
  const int64_t stride = ceil_div(columns, 8), num_choices = static_cast<int64_t>(changed.size());
  for (size_t tile = 0; tile < tile_groups.size(); ++tile) {
    const int64_t first = tile_rows[tile], last = tile_rows[tile + 1];
    std::vector<float> dense(static_cast<size_t>((last - first) * columns), 0.0f);
    for (int64_t s = 0; s < num_slabs; ++s) {
      const GroupBlock& block = blocks[tile * num_slabs + s];
      int64_t column = block.first_column;
      for (int64_t g = block.first_group; g < block.first_group + tile_groups[tile]; ++g) {
        const int64_t top = first + first_rows[g], in_block = top % block_rows;
        // Rows behind the group's span have zeros that are not kept.
        const int64_t span_rows = std::min(kMaxSpanRows - in_block % kMaxSpanRows, block_rows - in_block);
        const int64_t end = std::min(top + span_rows, last);
        for (int64_t c = 0; c < num_choices; ++c)
          for (int64_t j = 0; j < counts[g * num_choices + c]; ++j, ++column) {
            const int64_t k = s * slab_columns + offsets[column] / kOffsetUnit;
            for (int64_t i = 0; i < num_kept; ++i) {
              const int64_t row = top + choices[c * num_kept + i];
              if (row >= end) continue;
              // A row in two groups has its value in one and 0.0 in the other.
              const float value = values[column * num_kept + i];
              if (value != 0.0f || std::signbit(value)) dense[(row - first) * columns + k] = value;
              mask_bits[row * stride + (k >> 3)] |= static_cast<uint8_t>(1u << (k & 7));
            }
          }
      }
    }
    for (int64_t row = first; row < last; ++row)
      for (int64_t k = 0; k < columns; ++k)
        if (mask_bits[row * stride + (k >> 3)] >> (k & 7) & 1) *out++ = dense[(row - first) * columns + k];
  }
}

std::unique_ptr<PackedWeight> pack_block_groups(const KeptWeight& weight, int64_t block_rows, Isa isa) {
  const RowGroupsKernels& kernels = row_groups_kernels(isa);
  RowGroupsShape shape;
  shape.block_rows = block_rows;
  shape.num_kept = shape.group_rows = group_height(std::min(block_rows, kMaxSpanRows));
  shape.choices.emplace_back(shape.num_kept);
  std::iota(shape.choices[0].begin(), shape.choices[0].end(), uint8_t{0});
  shape.choice_of = [](uint32_t) { return size_t{0}; };
  const double numel = double(weight.rows) * double(weight.columns);
  const double density = numel > 0 ? count_mask(weight.mask_bits, weight.rows, weight.columns) / numel : 0.0;
  const int64_t limit = slab_limit(kernels, shape.num_kept, density);
  const int64_t num_slabs = std::max<int64_t>(ceil_div(weight.columns, limit), 1);
  shape.slab_columns = std::max<int64_t>(ceil_div(weight.columns, num_slabs), 1);
  return std::make_unique<RowGroupsWeight>(weight, shape, kernels);
}

std::unique_ptr<PackedWeight> pack_nmg_groups(const KeptWeight& weight, int64_t num_kept, int64_t group,
                                              int64_t repeats, Isa isa) {
  const RowGroupsKernels& kernels = row_groups_kernels(isa);
  RowGroupsShape shape;
  shape.block_rows = shape.group_rows = group;
  shape.num_kept = num_kept;
  shape.choices = gray_order(static_cast<int>(group), static_cast<int>(num_kept));
  std::vector<std::pair<uint32_t, size_t>> codes;
  for (const auto& choice : shape.choices) {
    uint32_t bits = 0;
    for (const uint8_t row : choice) bits |= uint32_t{1} << row;
    codes.emplace_back(bits, codes.size());
  }
  std::sort(codes.begin(), codes.end());
  shape.choice_of = [codes](uint32_t bits) {
    return std::lower_bound(codes.begin(), codes.end(), std::make_pair(bits, size_t{0}))->second;
  };
  const int64_t limit = slab_limit(kernels, num_kept, 1.0 / static_cast<double>(shape.choices.size()));
  const int64_t tile_columns = static_cast<int64_t>(shape.choices.size()) * repeats;
  shape.slab_columns = tile_columns <= limit ? limit / tile_columns * tile_columns : limit;
  return std::make_unique<RowGroupsWeight>(weight, shape, kernels);
}

std::vector<std::vector<uint8_t>> gray_order(int num_items, int num_chosen) {
  std::vector<std::vector<uint8_t>> order;
  if (num_chosen == 0) return {{}};
  if (num_chosen == 1) {
    for (int item = 0; item < num_items; ++item) order.push_back({static_cast<uint8_t>(item)});
    return order;
  }
  if (num_chosen == num_items) {
    order.emplace_back(num_items);
    std::iota(order[0].begin(), order[0].end(), uint8_t{0});
    return order;
  }
  // Eades and McKay: without the top item; reversed, with it and without the next; with both.
  const uint8_t top = static_cast<uint8_t>(num_items - 1), next = static_cast<uint8_t>(num_items - 2);
  order = gray_order(num_items - 1, num_chosen);
  std::vector<std::vector<uint8_t>> with_top = gray_order(num_items - 2, num_chosen - 1);
  std::reverse(with_top.begin(), with_top.end());
  for (auto& rest : with_top) {
    rest.push_back(top);
    order.push_back(rest);
  }
  for (auto& rest : gray_order(num_items - 2, num_chosen - 2)) {
    rest.insert(rest.end(), {next, top});
    order.push_back(rest);
  }
  return order;
}

}  // namespace gossamer
