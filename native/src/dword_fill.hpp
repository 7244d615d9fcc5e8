// SPDX-License-Identifier: Apache-2.0
// Builds a DwordLayout: cuts the weight into tiles and blocks and fills them with dwords.
#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "gossamer/dword_layout.hpp"
#include "gossamer/packed_weight.hpp"
#include "gossamer/panel_layout.hpp"

namespace gossamer {

struct Dword {
  uint32_t weights = 0;
  std::array<uint16_t, 4> columns{};  // inside the block; neighbours use the first
};

// For tiles of tokens: even blocks.
inline DwordCut token_cut(const KeptWeight& weight, const DwordColumns& most_columns) {
  const int64_t kept = row_starts(weight)[weight.rows];
  const bool is_low = double(kept) < kLowDwordDensity * double(weight.rows) * double(weight.columns);
  const int64_t most = is_low ? most_columns.sparse : most_columns.dense;
  const int64_t num_blocks = std::max<int64_t>((weight.columns + most - 1) / most, 1);
  const int64_t even = (weight.columns + num_blocks - 1) / num_blocks;
  DwordCut cut{std::max<int64_t>((even + 7) / 8 * 8, 8), {}};
  for (int64_t k = 0; k < cut.block_columns; ++k) cut.offsets.push_back(static_cast<uint16_t>(k * kDwordOffsetUnit));
  return cut;
}

// Sizes only: no weights yet.
inline void cut_dwords(DwordLayout& layout, const KeptWeight& weight, int64_t kept, DwordForm form,
                       const DwordCut& cut) {
  const int64_t rows = weight.rows, columns = weight.columns;
  layout.rows = rows;
  layout.columns = columns;
  layout.kept = kept;
  layout.form = form;
  layout.tile_rows = tile_rows_for(rows);
  layout.num_tiles = (rows + layout.tile_rows - 1) / layout.tile_rows;
  layout.block_columns = cut.block_columns;
  layout.num_blocks = std::max<int64_t>((columns + cut.block_columns - 1) / cut.block_columns, 1);
}

// The `index`-th kept weight of a row of a block.
template <int LANES>
void add_kept(std::vector<Dword>& dwords, DwordForm form, int64_t index, int64_t column, uint32_t code) {
  const bool any_columns = form != DwordForm::neighbours;
  const auto lane = static_cast<size_t>((any_columns ? index : column) % LANES);
  const auto first = static_cast<uint16_t>(any_columns ? column : column / LANES * LANES);
  if (any_columns ? lane == 0 : dwords.empty() || dwords.back().columns[0] != first) {
    dwords.emplace_back();
    dwords.back().columns.fill(first);  // unused lanes repeat a column and weigh nothing
  }
  if (any_columns) dwords.back().columns[lane] = first;
  dwords.back().weights |= code << (32 / LANES * lane);
}

// Fills a layout that was cut by `cut`. code(row, value) gives the 32 / LANES bits of a weight, called in
// the order of each row; arrange(dwords) may sort the dwords of a row and gives its pairs.
template <int LANES, class Code, class Arrange>
void fill_dwords(DwordLayout& layout, const KeptWeight& weight, std::vector<int64_t> cursor, const DwordCut& cut,
                 const Code& code, const Arrange& arrange) {
  struct Row {
    std::vector<Dword> dwords;
    int64_t num_pairs = 0;
  };
  std::vector<Row> tile_block(layout.tile_rows);
  std::vector<int64_t> order;
  for (int64_t tile = 0; tile < layout.num_tiles; ++tile) {
    const int64_t first = tile * layout.tile_rows, num = std::min(layout.tile_rows, layout.rows - first);
    for (int64_t block = 0; block < layout.num_blocks; ++block) {
      const int64_t k0 = block * layout.block_columns, k1 = std::min(k0 + layout.block_columns, layout.columns);
      for (int64_t i = 0; i < num; ++i) {
        Row& row = tile_block[i];
        const int64_t r = first + i;
        row.dwords.clear();
        int64_t index = 0;
        for (int64_t k = k0; k < k1; ++k)
          if (weight.keeps(r, k))
            add_kept<LANES>(row.dwords, layout.form, index++, k - k0, code(r, weight.values[cursor[r]++]));
        row.num_pairs = arrange(row.dwords);
      }
      // Equal trip counts in a row are what the branch predictor needs.
      order.resize(num);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const Row &x = tile_block[a], &y = tile_block[b];
        return x.dwords.size() != y.dwords.size() ? x.dwords.size() > y.dwords.size() : x.num_pairs > y.num_pairs;
      });
      layout.blocks.push_back(
          {static_cast<int64_t>(layout.row_ids.size()), static_cast<int64_t>(layout.weights.size()), num});
      for (const int64_t id : order) {
        const Row& row = tile_block[id];
        layout.row_ids.push_back(static_cast<uint16_t>(id));
        layout.row_dwords.push_back(static_cast<uint16_t>(row.dwords.size()));
        layout.row_pairs.push_back(static_cast<uint16_t>(row.num_pairs));
        for (const Dword& dword : row.dwords) {
          layout.weights.push_back(static_cast<int32_t>(dword.weights));
          for (int i = 0; i < dword_offsets(layout.form, LANES); ++i)
            layout.offsets.push_back(cut.offsets[dword.columns[i]]);
        }
      }
    }
  }
  layout.row_ids.push_back(0);
}

}  // namespace gossamer
