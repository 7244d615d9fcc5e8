// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "gossamer/bf16.hpp"
#include "gossamer/panel_layout.hpp"
#include "mask_bytes.hpp"

namespace gossamer {
namespace {

// Offsets of columns are 16 bits.
constexpr int64_t kMaxBlockColumns = 65536 / kOffsetUnit;

const PanelShape& shape_for(const PanelShape* shapes, double density) {
  while (density < shapes->min_density) ++shapes;
  return *shapes;
}

double density_of(int64_t rows, int64_t columns, int64_t kept) {
  const double numel = double(rows) * double(columns);
  return numel > 0 ? double(kept) / numel : 0.0;
}

// The weight in the cut of `layout`.
PanelLayout fill(PanelLayout layout, const KeptWeight& weight, const std::vector<int64_t>& row_start,
                 bool skip_empty_rows = false) {
  const int64_t rows = weight.rows, columns = weight.columns;
  layout.values.reserve(layout.kept);
  layout.offsets.reserve(layout.kept);
  std::vector<int64_t> cursor(row_start.begin(), row_start.end() - 1);
  std::vector<int64_t> order, counts;
  for (int64_t tile = 0; tile < layout.num_tiles; ++tile) {
    const int64_t first = tile * layout.tile_rows, num = std::min(layout.tile_rows, rows - first);
    const int64_t grouped = (num + layout.group_rows - 1) / layout.group_rows * layout.group_rows;
    for (int64_t block = 0; block < layout.num_blocks; ++block) {
      const int64_t k0 = block * layout.block_columns;
      const int64_t k1 = std::min(k0 + layout.block_columns, columns);
      counts.assign(grouped, 0);
      for (int64_t i = 0; i < num; ++i)
        for (int64_t k = k0; k < k1; ++k) counts[i] += weight.keeps(first + i, k);
      order.resize(grouped);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return counts[a] > counts[b]; });
      // The first block starts every accumulator; in later ones rows that keep nothing can be left out.
      int64_t used = grouped;
      while (skip_empty_rows && block > 0 && used > 0 && counts[order[used - layout.group_rows]] == 0) used -= layout.group_rows;
      layout.blocks.push_back({static_cast<int64_t>(layout.row_ids.size()),
                               static_cast<int64_t>(layout.values.size()), used});
      for (int64_t i = 0; i < used; i += layout.group_rows) {
        const size_t at = layout.values.size();
        const int64_t longest = counts[order[i]];
        layout.values.resize(at + longest * layout.group_rows, 0.0f);
        layout.offsets.resize(at + longest * layout.group_rows, 0);
        for (int64_t g = 0; g < layout.group_rows; ++g) {
          const int64_t id = order[i + g];
          layout.row_ids.push_back(static_cast<uint16_t>(id));
          layout.row_counts.push_back(static_cast<uint16_t>(counts[id]));
          size_t slot = at + g;
          for (int64_t k = k0; id < num && k < k1; ++k) {
            if (!weight.keeps(first + id, k)) continue;
            layout.values[slot] = weight.values[cursor[first + id]++];
            layout.offsets[slot] = static_cast<uint16_t>((k - k0) * kOffsetUnit);
            slot += layout.group_rows;
          }
        }
      }
    }
  }
  for (int64_t g = 0; g < layout.group_rows; ++g) layout.row_ids.push_back(0);
  return layout;
}

}  // namespace

std::vector<int64_t> row_starts(const KeptWeight& weight) {
  const int64_t stride = weight.mask_stride();
  std::vector<int64_t> start(static_cast<size_t>(weight.rows) + 1, 0);
  for (int64_t r = 0; r < weight.rows; ++r)
    start[r + 1] = start[r] + count_bits(weight.mask_bits + r * stride, stride);
  return start;
}

int64_t tile_rows_for(int64_t rows, int64_t parts) {
  // At least two tiles where there are rows for it, so that two threads can share one token tile.
  const int64_t least = std::max<int64_t>((rows + kMaxTileRows - 1) / kMaxTileRows, rows >= 128 ? 2 : 1);
  const int64_t tiles = (least + parts - 1) / parts * parts;
  return std::max<int64_t>(((rows + tiles - 1) / tiles + 15) / 16 * 16, 16);
}

PanelLayout cut_panel(int64_t rows, int64_t columns, int64_t kept, const PanelShape* shapes, int64_t parts) {
  const PanelShape& shape = shape_for(shapes, density_of(rows, columns, kept));
  PanelLayout layout;
  layout.rows = rows;
  layout.columns = columns;
  layout.kept = kept;
  layout.group_rows = shape.group_rows;
  layout.block_columns = layout.slab_columns = shape.block_columns;
  layout.num_blocks = (columns + layout.block_columns - 1) / layout.block_columns;
  layout.tile_rows = tile_rows_for(rows, parts);
  layout.num_tiles = (rows + layout.tile_rows - 1) / layout.tile_rows;
  return layout;
}

void PanelLayout::round_values() {
  bf16_values.resize(values.size());
  std::transform(values.begin(), values.end(), bf16_values.begin(), to_bf16);
  values = {};
}

PanelLayout pack_panel(const KeptWeight& weight, const PanelShape* shapes, bool skip_empty_rows) {
  const std::vector<int64_t> row_start = row_starts(weight);
  return fill(cut_panel(weight.rows, weight.columns, row_start[weight.rows], shapes), weight, row_start,
              skip_empty_rows);
}

PanelLayout pack_shared_panel(const KeptWeight& weight, const PanelShape* shapes, int64_t tile_rows,
                              int64_t used, int64_t group) {
  const int64_t rows = weight.rows, columns = weight.columns;
  const std::vector<int64_t> row_start = row_starts(weight);
  // What counts is how full the used columns are.
  const PanelShape& shape = shape_for(shapes, density_of(rows, columns, row_start[rows]) * group / used);
  const int64_t groups = std::max<int64_t>(std::min(shape.block_columns / used, kMaxBlockColumns / group), 1);
  PanelLayout layout;
  layout.rows = rows;
  layout.columns = columns;
  layout.kept = row_start[rows];
  layout.block_columns = groups * group;
  layout.slab_columns = groups * used;
  layout.group_rows = layout.slab_columns * kWidestTile <= kMaxSlabFloats ? 1 : shape.group_rows;
  layout.num_blocks = (columns + layout.block_columns - 1) / layout.block_columns;
  layout.tile_rows = tile_rows;
  layout.num_tiles = (rows + tile_rows - 1) / tile_rows;
  return fill(std::move(layout), weight, row_start);
}

void unpack_panel(const PanelLayout& layout, float* values, uint8_t* mask_bits) {
  // Blocks of a tile come in column order, so each row's values are met in row-major order.
  const int64_t stride = (layout.columns + 7) / 8;
  std::vector<int64_t> row_start(static_cast<size_t>(layout.rows) + 1, 0);
  const auto each_row = [&](auto&& visit) {
    for (int64_t tile = 0; tile < layout.num_tiles; ++tile)
      for (int64_t block = 0; block < layout.num_blocks; ++block) {
        const PanelBlock& b = layout.blocks[tile * layout.num_blocks + block];
        int64_t at = b.first_value;
        for (int64_t i = 0; i < b.num_rows; i += layout.group_rows) {
          for (int64_t g = 0; g < layout.group_rows; ++g) {
            const int64_t row = tile * layout.tile_rows + layout.row_ids[b.first_row + i + g];
            visit(row, block, at + g, layout.row_counts[b.first_row + i + g]);
          }
          at += layout.row_counts[b.first_row + i] * layout.group_rows;
        }
      }
  };
  each_row([&](int64_t row, int64_t, int64_t, int64_t count) {
    if (count) row_start[row + 1] += count;  // the spare row of a tile has none
  });
  std::partial_sum(row_start.begin(), row_start.end(), row_start.begin());
  each_row([&](int64_t row, int64_t block, int64_t at, int64_t count) {
    for (int64_t j = at; count-- > 0; j += layout.group_rows) {
      const int64_t k = block * layout.block_columns + layout.offsets[j] / kOffsetUnit;
      mask_bits[row * stride + (k >> 3)] |= static_cast<uint8_t>(1u << (k & 7));
      values[row_start[row]++] = layout.values[j];
    }
  });
}

}  // namespace gossamer
