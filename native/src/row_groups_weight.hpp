// SPDX-License-Identifier: Apache-2.0
// The packed weight that owns what a RowGroupsView points to.
#pragma once
#include <functional>
#include <vector>

#include "gossamer/packed_weight.hpp"
#include "gossamer/row_groups.hpp"

namespace gossamer {

// How rows are grouped: no group crosses the end of a block.
struct RowGroupsShape {
  int64_t block_rows = 0, group_rows = 0, num_kept = 0, slab_columns = 0;
  std::vector<std::vector<uint8_t>> choices;
  std::function<size_t(uint32_t kept_rows)> choice_of;  // bit i: row i of the group keeps the column
};

struct RowGroupsWeight final : PackedWeight {
  const RowGroupsKernels& kernels;
  int64_t num_kept, slab_columns, block_rows;
  int64_t num_slabs = 0, max_tile_rows = 0;
  bool has_own_rows;
  std::vector<uint8_t> choices, changed;
  std::vector<int64_t> tile_rows, tile_groups;
  std::vector<GroupBlock> blocks;
  std::vector<uint16_t> first_rows, counts, offsets;
  std::vector<float> values;

  RowGroupsWeight(const KeptWeight& weight, const RowGroupsShape& shape, const RowGroupsKernels& chosen);
  RowGroupsView view() const;
  size_t bytes() const override;
  void run(const LinearCall& call, int num_threads) const override;
  bool is_lossless() const override { return true; }
  void unpack(float* out, uint8_t* mask_bits) const override;
};

}  // namespace gossamer
