// SPDX-License-Identifier: Apache-2.0
// The packed weight that owns what a PanelView points to, and the driver that runs it.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/packed_weight.hpp"
#include "gossamer/panel.hpp"

namespace gossamer {

// 512 rows x 64 tokens of accumulators are 128 KiB: they stay in L2 beside the slab (1024 rows
// lost 5 %).
constexpr int64_t kMaxTileRows = 512;

// Rows of a tile of a weight with this many: even tiles, a multiple of 16 rows each. Where there are rows enough,
// `parts` divides the number of tiles.
int64_t tile_rows_for(int64_t rows, int64_t parts = 1);

// Where the values of each row begin; the last entry is the number of kept weights.
std::vector<int64_t> row_starts(const KeptWeight& weight);

struct PanelLayout {
  int64_t rows = 0, columns = 0, kept = 0;
  int64_t block_columns = 0, tile_rows = 0;
  int64_t num_blocks = 0, num_tiles = 0, group_rows = 1;
  int64_t slab_columns = 0;  // columns of a block that its rows use: what has to stay in L1
  std::vector<PanelBlock> blocks;
  std::vector<uint16_t> row_ids, row_counts, offsets;
  std::vector<float> values;
  std::vector<uint16_t> bf16_values;  // instead of `values`, once rounded

  // Rounds the values to bf16 and frees them.
  void round_values();

  PanelView view() const {
    return {rows,           columns,           block_columns, tile_rows,     num_blocks,
            num_tiles,      group_rows,        blocks.data(), row_ids.data(), row_counts.data(),
            bf16_values.empty() ? values.data() : nullptr, offsets.data(), bf16_values.data()};
  }
  size_t bytes() const {
    return blocks.size() * sizeof(PanelBlock) + values.size() * sizeof(float) +
           (row_ids.size() + row_counts.size() + offsets.size() + bf16_values.size()) * sizeof(uint16_t);
  }
};

const PanelKernels& panel_kernels(Isa isa);

// How a [rows][columns] weight is cut into tiles and blocks; holds no weights yet. `parts` get as many tiles each.
PanelLayout cut_panel(int64_t rows, int64_t columns, int64_t kept, const PanelShape* shapes, int64_t parts = 1);

// Builds the layout in the shape that fits the density. May throw std::bad_alloc. Layouts made anew in training
// (fresh_panel.hpp) list every row in every block; without the empty ones a kernel does less.
PanelLayout pack_panel(const KeptWeight& weight, const PanelShape* shapes, bool skip_empty_rows = false);

// Every `tile_rows` rows use the same `used` columns of each `group` columns (V:N:M). Blocks then
// count used columns only: they are wider and rows in them longer.
PanelLayout pack_shared_panel(const KeptWeight& weight, const PanelShape* shapes, int64_t tile_rows,
                              int64_t used, int64_t group);

// The inverse: values back in row-major order and mask bits (zeroed by the caller).
void unpack_panel(const PanelLayout& layout, float* values, uint8_t* mask_bits);

// Splits the tokens into tiles and the work over threads.
void run_panel(const PanelLayout& layout, const LinearCall& call, const PanelKernels& kernels,
               int num_threads);

// Any mask; values in fp32 or rounded to bf16, arithmetic in fp32.
std::unique_ptr<PackedWeight> pack_panel_weight(const KeptWeight& weight, Isa isa, bool bf16 = false);
std::unique_ptr<PackedWeight> pack_shared_panel_weight(const KeptWeight& weight, Isa isa,
                                                       int64_t tile_rows, int64_t used, int64_t group);

}  // namespace gossamer
