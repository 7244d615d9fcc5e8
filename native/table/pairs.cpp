// SPDX-License-Identifier: Apache-2.0
// Rows of all tables and their dots: a few samples at a time, so that what was gathered is still in the cache.
#include <algorithm>
#include <vector>

#include "in_parallel.hpp"
#include "table/kernels_of.hpp"
#include "table/prefetch.hpp"
#include "table/table.hpp"

namespace gossamer::table {
namespace {

constexpr int64_t kBlock = 16;  // samples

struct Block {
  Block(const Pairs& p, int64_t first, int64_t last) : pairs(p), from(first), count(last - first) {}

  void ask() const {
    for (int64_t s = 0; s < count; ++s)
      for (int64_t t = 0; t < pairs.num_tables; ++t) {
        const Table& table = pairs.tables[t];
        const int64_t id = pairs.ids[(from + s) * pairs.num_tables + t], row = table.map ? table.map[id] : id;
        prefetch_row<0>(table.data, row, row_bytes(table.width, table.bits));
        if (table.by_row && table.scales) __builtin_prefetch(table.scales + row * table.scales_of_row());
      }
  }

  // `vectors` [count, num_vectors, stride], `ids` [count].
  void run(const Kernels& kernels, float* vectors, int64_t stride, int64_t* ids) const {
    const int64_t num_vectors = pairs.num_vectors(), sample = num_vectors * stride, before = pairs.first != nullptr;
    Seen seen = {};
    for (int64_t t = 0; t < pairs.num_tables; ++t) {
      for (int64_t s = 0; s < count; ++s) ids[s] = pairs.ids[(from + s) * pairs.num_tables + t];
      const Bags bags = {ids, count, nullptr, 1, count, nullptr, false, pairs.paddings[t]};
      kernels.pool(pairs.tables[t], bags, 0, count, vectors + (before + t) * stride, sample, seen);
    }
    for (int64_t s = 0; s < count; ++s) {
      float* const own = vectors + s * sample;
      float* const out = pairs.out + (from + s) * pairs.out_width();
      if (before) {
        const float* const given = pairs.first + (from + s) * pairs.width;
        std::copy(given, given + pairs.width, own);
        std::copy(given, given + pairs.width, out);
      } else {
        std::fill(out, out + pairs.width, 0.0f);
        for (int64_t t = 0; t < pairs.num_tables; ++t)
          for (int64_t c = 0; c < pairs.width; ++c) out[c] += own[t * stride + c];
      }
      kernels.dots(own, num_vectors, stride, out + pairs.width);
    }
  }

  const Pairs& pairs;
  int64_t from, count;
};

}  // namespace

void pairs(const Pairs& pairs, Isa isa, int num_threads) {
  const Kernels& kernels = kernels_of(isa);
  const int64_t stride = (pairs.width + kLanes - 1) / kLanes * kLanes;
  const int64_t most = std::max<int64_t>(1, usable_threads(num_threads));
  const int64_t blocks = (pairs.batch + kBlock - 1) / kBlock, parts = std::clamp<int64_t>(blocks / 4, 1, most);
  in_parallel(parts, num_threads, [&](int64_t part) {
    // What is behind a vector stays zero.
    std::vector<float> vectors(static_cast<size_t>(std::min(kBlock, pairs.batch) * pairs.num_vectors() * stride));
    int64_t ids[kBlock];
    const auto block = [&](int64_t number) {
      return Block(pairs, std::min(number * kBlock, pairs.batch), std::min((number + 1) * kBlock, pairs.batch));
    };
    const int64_t end = blocks * (part + 1) / parts;
    for (int64_t number = blocks * part / parts; number < end; ++number) {
      if (number == blocks * part / parts) block(number).ask();
      if (number + 1 < end) block(number + 1).ask();
      block(number).run(kernels, vectors.data(), stride, ids);
    }
  });
}

}  // namespace gossamer::table
