// SPDX-License-Identifier: Apache-2.0
// What packs weights whose rows share columns for the row-group kernel.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/packed_weight.hpp"
#include "gossamer/row_groups.hpp"

namespace gossamer {

const RowGroupsKernels& row_groups_kernels(Isa isa);

// block:RxC. Rows of a block of `block_rows` >= 2 keep the same columns; the last block may be cut off.
std::unique_ptr<PackedWeight> pack_block_groups(const KeptWeight& weight, int64_t block_rows, Isa isa);

// n:m:g with `num_kept` = n <= kMaxGroupKept. Every column keeps n of each `group` = m rows; tiles of
// C(m, n) * `repeats` columns use each choice equally often, which fixes the trip counts where a
// tile fits into a slab.
std::unique_ptr<PackedWeight> pack_nmg_groups(const KeptWeight& weight, int64_t num_kept, int64_t group,
                                              int64_t repeats, Isa isa);

// All choices of `num_chosen` of `num_items`, each an increasing list, each one entry from the one
// before: gray_order of patterns/gray.py.
std::vector<std::vector<uint8_t>> gray_order(int num_items, int num_chosen);

}  // namespace gossamer
