// SPDX-License-Identifier: Apache-2.0
// Work is cut into runs of bags or rows; no row of a result belongs to two of them.
#include <algorithm>
#include <vector>

#include "in_parallel.hpp"
#include "table/kernels_of.hpp"
#include "table/table.hpp"

namespace gossamer::table {
namespace {

// Bags and rows of a task at least: fewer are not worth a thread.
constexpr int64_t kSmallestTask = 64;

// body(task, first, last) over about equal parts of 0 .. count - 1.
template <class Body>
int64_t in_parts(int64_t count, int num_threads, Body body) {
  const int64_t most = std::max<int64_t>(1, usable_threads(num_threads));
  const int64_t parts = std::clamp<int64_t>(count / kSmallestTask, 1, most);
  in_parallel(parts, num_threads, [&](int64_t part) { body(part, count * part / parts, count * (part + 1) / parts); });
  return parts;
}

}  // namespace

Seen pool(const Table& table, const Bags& bags, float* out, int64_t out_stride, Isa isa, int num_threads) {
  const Kernels& kernels = kernels_of(isa);
  if (num_threads == 1 || bags.num_bags < 2 * kSmallestTask) {
    Seen seen = {};
    kernels.pool(table, bags, 0, bags.num_bags, out, out_stride, seen);
    return seen;
  }
  std::vector<Seen> parts(static_cast<size_t>(std::max(1, num_threads)), Seen{});
  in_parts(bags.num_bags, num_threads, [&](int64_t part, int64_t first, int64_t last) {
    kernels.pool(table, bags, first, last, out, out_stride, parts[static_cast<size_t>(part)]);
  });
  Seen seen = {};
  for (const Seen& part : parts) {
    seen.top = std::max(seen.top, part.top);
    seen.clipped += part.clipped;
  }
  return seen;
}

uint32_t top(const float* values, int64_t count, Isa isa, int num_threads) {
  const Kernels& kernels = kernels_of(isa);
  std::vector<uint32_t> parts(static_cast<size_t>(std::max(1, num_threads)), 0u);
  in_parts(count, num_threads, [&](int64_t part, int64_t first, int64_t last) {
    parts[static_cast<size_t>(part)] = kernels.top(values + first, last - first);
  });
  return *std::max_element(parts.begin(), parts.end());
}

void encode(const Table& floats, int bits, uint8_t* codes, float* scales, Isa isa, int num_threads) {
  in_parts(floats.num_rows, num_threads, [&](int64_t, int64_t first, int64_t last) {
    kernels_of(isa).encode(floats, bits, first, last, codes, scales);
  });
}

void update(const Update& update, Isa isa, int num_threads) {
  const int64_t row_floats = (update.width + kLanes - 1) / kLanes * kLanes;
  in_parts(update.num_segments, num_threads, [&](int64_t, int64_t first, int64_t last) {
    std::vector<float> scratch(static_cast<size_t>(2 * row_floats));
    kernels_of(isa).update(update, first, last, scratch.data());
  });
}

}  // namespace gossamer::table
