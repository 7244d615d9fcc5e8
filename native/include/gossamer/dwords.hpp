// SPDX-License-Identifier: Apache-2.0
// Kept weights of a row in dwords, four int8 or two bf16: what one multiply-add
// instruction takes. What the kernels of both types see of a layout.
//
// A dword stands for as many columns as it has lanes. Three forms of the tile of tokens feed it:
//   panel        [column][token]: any columns are interleaved on the fly, any mask
//   neighbours   [column / lanes][token][lanes]: adjacent columns, no shuffles; masks whose zeros
//                come in aligned runs of as many columns
//   image        as panel, but columns start at any byte and their tokens, pixels, stand in natural
//                order; convolutions (int8_conv.hpp)
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/linear.hpp"
#include "gossamer/panel.hpp"

namespace gossamer {

enum class DwordForm : int { panel = 0, neighbours = 1, image = 2 };

// Column offsets of a dword.
static constexpr int dword_offsets(DwordForm form, int lanes) { return form == DwordForm::neighbours ? 1 : lanes; }

// A column offset is stored in bytes of a tile of 32 tokens of one byte; others multiply it. Those of
// images are just bytes.
constexpr int kDwordOffsetUnit = 32;
// Bytes of the tile of tokens that stay in an L1 of 32 KiB: wider tiles are for narrower blocks.
constexpr int64_t kMaxDwordSlab = 24576;
// Below this rows of a block get short: wider blocks, narrower tiles.
constexpr double kLowDwordDensity = 0.15;

struct DwordBlock {
  int64_t first_row;    // into row_ids, row_dwords, row_pairs
  int64_t first_dword;  // into weights and offsets (times lanes or 1)
  int64_t num_rows;
};

// Cut like the fp32 panel: column blocks whose slab stays in L1, row tiles whose accumulators stay
// in L2, rows of a block sorted by their count.
struct DwordView {
  int64_t rows, columns;
  int64_t block_columns, tile_rows;  // block_columns is a multiple of 8, but for images
  int64_t num_blocks, num_tiles;
  DwordForm form;
  const DwordBlock* blocks;    // [num_tiles][num_blocks]
  const uint16_t* row_ids;     // row inside its tile; a spare entry at the end for the prefetch
  const uint16_t* row_dwords;  // dwords of that row inside the block
  const uint16_t* row_pairs;   // of which these pairs, in front, may be summed before they are widened
  const int32_t* weights;      // [dwords]; the lane of the lowest column in the lowest bits
  const uint16_t* offsets;     // [dwords][dword_offsets(form, lanes)]
};

static inline int64_t rows_of_tile(const DwordView& view, int64_t tile) {
  const int64_t left = view.rows - tile * view.tile_rows;
  return left < view.tile_rows ? left : view.tile_rows;
}

// Columns of a block at most, above and below kLowDwordDensity.
struct DwordColumns {
  int64_t dense, sparse;
};

}  // namespace gossamer
