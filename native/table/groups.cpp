// SPDX-License-Identifier: Apache-2.0
#include "table/groups.hpp"

#include <algorithm>

#include "table/code_bytes.hpp"

namespace gossamer::table {
namespace {

constexpr int64_t kFewKeys = 512;  // below, counters cost more than comparisons
constexpr int kMostDigits = 12;    // of a pass: 4096 counters stay in L1

int bits_below(uint64_t count) {
  int bits = 0;
  while (bits < 63 && (uint64_t{1} << bits) < count) ++bits;
  return bits;
}

// Keys are row << 32 | position, so that any sort keeps the order of positions; this one is stable and
// looks at the row alone, a digit at a time.
void sort_keys(std::vector<uint64_t>& keys, int row_bits) {
  if (static_cast<int64_t>(keys.size()) < kFewKeys) return std::sort(keys.begin(), keys.end());
  const int passes = std::max(1, (row_bits + kMostDigits - 1) / kMostDigits), digits = (row_bits + passes - 1) / passes;
  std::vector<uint64_t> other(keys.size());
  std::vector<uint32_t> starts(size_t{1} << digits);
  const uint64_t mask = (uint64_t{1} << digits) - 1;
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = 32 + pass * digits;
    std::fill(starts.begin(), starts.end(), 0u);
    for (const uint64_t key : keys) ++starts[key >> shift & mask];
    uint32_t before = 0;
    for (uint32_t& start : starts) {
      const uint32_t count = start;
      start = before;
      before += count;
    }
    for (const uint64_t key : keys) other[starts[key >> shift & mask]++] = key;
    keys.swap(other);
  }
}

}  // namespace

Groups group_by_row(const Table& table, const Bags& bags) {
  Groups groups;
  std::vector<uint64_t> keys;
  keys.reserve(static_cast<size_t>(bags.num_positions));
  const int64_t first = bags.num_bags ? bags.first(0) : 0, last = bags.num_bags ? bags.first(bags.num_bags) : 0;
  for (int64_t p = first; p < last; ++p) {
    const int64_t id = bags.ids[p];
    if (id == bags.padding) continue;
    const uint64_t row = static_cast<uint64_t>(table.map ? table.map[id] : id);
    keys.push_back(row << 32 | static_cast<uint64_t>(p));
  }
  sort_keys(keys, bits_below(static_cast<uint64_t>(table.num_rows)));
  groups.order.resize(keys.size());
  groups.rows.reserve(keys.size());
  groups.first.reserve(keys.size() + 1);
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t row = static_cast<int64_t>(keys[i] >> 32);
    if (groups.rows.empty() || groups.rows.back() != row) {
      groups.rows.push_back(row);
      groups.first.push_back(static_cast<int64_t>(i));
    }
    groups.order[i] = static_cast<uint32_t>(keys[i]);
  }
  groups.first.push_back(static_cast<int64_t>(keys.size()));
  if (bags.offsets || bags.bag_size != 1) {
    groups.bag_of.resize(static_cast<size_t>(bags.num_positions));
    for (int64_t bag = 0; bag < bags.num_bags; ++bag)
      std::fill(groups.bag_of.begin() + bags.first(bag), groups.bag_of.begin() + bags.first(bag + 1),
                static_cast<uint32_t>(bag));
  }
  if (bags.mean) {
    groups.bag_factors.resize(static_cast<size_t>(bags.num_bags));
    for (int64_t bag = 0; bag < bags.num_bags; ++bag) {
      const int64_t count = counted(bags, bags.first(bag), bags.first(bag + 1));
      groups.bag_factors[static_cast<size_t>(bag)] = count ? 1.0f / static_cast<float>(count) : 0.0f;
    }
  }
  return groups;
}

}  // namespace gossamer::table
