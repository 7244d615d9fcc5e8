// SPDX-License-Identifier: Apache-2.0
// Rows of edges from lists of them, orders of nodes, samples of neighbours.
#include <algorithm>
#include <vector>

#include "graph.hpp"

namespace gossamer {

void edges_to_rows(const int64_t* sources, const int64_t* targets, int64_t num_edges, int64_t rows,
                   const int32_t* row_order, int64_t* starts, int32_t* columns, int32_t* numbers) {
  std::vector<int32_t> lies_at;  // where a row lies
  if (row_order) {
    lies_at.resize(static_cast<size_t>(rows));
    for (int64_t k = 0; k < rows; ++k) lies_at[static_cast<size_t>(row_order[k])] = static_cast<int32_t>(k);
  }
  const auto place = [&](int64_t row) { return row_order ? int64_t{lies_at[static_cast<size_t>(row)]} : row; };
  std::fill(starts, starts + rows + 1, 0);
  for (int64_t e = 0; e < num_edges; ++e) ++starts[place(targets[e]) + 1];
  for (int64_t k = 0; k < rows; ++k) starts[k + 1] += starts[k];
  std::vector<int64_t> next(starts, starts + rows);
  for (int64_t e = 0; e < num_edges; ++e) {
    const int64_t at = next[static_cast<size_t>(place(targets[e]))]++;
    columns[at] = static_cast<int32_t>(sources[e]);
    numbers[at] = static_cast<int32_t>(e);
  }
}

void cuthill_mckee(const EdgeRows& in, const EdgeRows& out, int32_t* order) {
  const int64_t nodes = in.rows;
  const auto degree = [&](int32_t v) {
    return in.starts[v + 1] - in.starts[v] + out.starts[v + 1] - out.starts[v];
  };
  std::vector<int32_t> starts(static_cast<size_t>(nodes));
  for (int64_t v = 0; v < nodes; ++v) starts[static_cast<size_t>(v)] = static_cast<int32_t>(v);
  std::stable_sort(starts.begin(), starts.end(), [&](int32_t a, int32_t b) { return degree(a) < degree(b); });
  std::vector<char> seen(static_cast<size_t>(nodes), 0);
  int64_t end = 0;
  for (const int32_t start : starts) {
    if (seen[static_cast<size_t>(start)]) continue;
    seen[static_cast<size_t>(start)] = 1;
    order[end++] = start;
    for (int64_t at = end - 1; at < end; ++at) {
      const int32_t v = order[at];
      const int64_t first = end;
      for (const EdgeRows* rows : {&in, &out})
        for (int64_t e = rows->starts[v]; e < rows->starts[v + 1]; ++e) {
          const int32_t w = rows->columns[e];
          if (seen[static_cast<size_t>(w)]) continue;
          seen[static_cast<size_t>(w)] = 1;
          order[end++] = w;
        }
      std::stable_sort(order + first, order + end, [&](int32_t a, int32_t b) { return degree(a) < degree(b); });
    }
  }
  std::reverse(order, order + nodes);
}

namespace {

// SplitMix64: any two rows draw unrelated numbers, whatever else was drawn before.
struct Draws {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(bound)) >> 64);
  }
};

}  // namespace

int64_t sample_neighbours(const EdgeRows& edges, const int64_t* rows, int64_t count, int64_t fanout, uint64_t seed,
                          int64_t* positions, int64_t* counts) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = edges.starts[rows[i]], degree = edges.starts[rows[i] + 1] - start;
    int64_t* const mine = positions + total;
    counts[i] = std::min(degree, fanout);
    if (degree <= fanout) {
      for (int64_t d = 0; d < degree; ++d) mine[d] = start + d;
    } else {
      Draws draws{seed ^ (static_cast<uint64_t>(rows[i]) * 0xd6e8feb86659fd93u)};
      // Floyd: each set of this size is equally likely, and nothing as long as the row is touched.
      int64_t taken = 0;
      for (int64_t last = degree - fanout; last < degree; ++last) {
        const int64_t draw = start + draws.below(last + 1);
        const bool repeated = std::find(mine, mine + taken, draw) != mine + taken;
        mine[taken++] = repeated ? start + last : draw;
      }
      std::sort(mine, mine + taken);
    }
    total += counts[i];
  }
  return total;
}

}  // namespace gossamer
