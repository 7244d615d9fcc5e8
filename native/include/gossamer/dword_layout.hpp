// SPDX-License-Identifier: Apache-2.0
// What a DwordView points to.
#pragma once
#include <cstdint>
#include <vector>

#include "gossamer/dwords.hpp"

namespace gossamer {

// How columns are cut into blocks, and the offset of each column of a block.
struct DwordCut {
  int64_t block_columns;
  std::vector<uint16_t> offsets;
};

struct DwordLayout {
  int64_t rows = 0, columns = 0, kept = 0;
  int64_t block_columns = 0, tile_rows = 0;
  int64_t num_blocks = 0, num_tiles = 0;
  DwordForm form = DwordForm::panel;
  std::vector<DwordBlock> blocks;
  std::vector<uint16_t> row_ids, row_dwords, row_pairs, offsets;
  std::vector<int32_t> weights;

  DwordView dword_view() const {
    return {rows,          columns,           block_columns,    tile_rows,      num_blocks,    num_tiles, form,
            blocks.data(), row_ids.data(),    row_dwords.data(), row_pairs.data(), weights.data(), offsets.data()};
  }
  size_t dword_bytes() const {
    return blocks.size() * sizeof(DwordBlock) + weights.size() * sizeof(int32_t) +
           (row_ids.size() + row_dwords.size() + row_pairs.size() + offsets.size()) * sizeof(uint16_t);
  }
};

}  // namespace gossamer
