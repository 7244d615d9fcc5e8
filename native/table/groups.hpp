// SPDX-License-Identifier: Apache-2.0
// Positions of a batch by the row they look up: equal rows together, in the order of their positions.
#pragma once
#include <cstdint>
#include <vector>

#include "table/table.hpp"

namespace gossamer::table {

struct Groups {
  std::vector<int64_t> rows, first;  // each row once, ascending; first[s] .. first[s + 1] - 1 in `order`
  std::vector<uint32_t> order;       // positions
  std::vector<uint32_t> bag_of;      // by position; empty where position and bag are the same
  std::vector<float> bag_factors;    // 1 / count of a mean; empty for sums
};

// Positions whose id is the padding are left out. Below 2^32 rows and positions. Throws std::bad_alloc.
Groups group_by_row(const Table& table, const Bags& bags);

}  // namespace gossamer::table
