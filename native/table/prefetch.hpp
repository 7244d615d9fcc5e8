// SPDX-License-Identifier: Apache-2.0
// Rows are random reads: each is asked for a number of rows before it is needed.
#pragma once
#include "table/table.hpp"

namespace gossamer::table {
namespace {

// A function that only prefetches has no effect that GCC knows of, and calls of it are dropped unless they are
// inlined at once: without this, lookups outside of the cache took 4 times as long.
#define GOSSAMER_INLINE __attribute__((always_inline)) inline

constexpr int64_t kLine = 64, kMostLines = 16;

// How many rows ahead: as many as a third of L1 holds. Rows of 32 bytes took 0.24, 0.16 and 0.13 of a millisecond
// for 20480 random ones at 16, 32 and 64 rows.
inline int64_t rows_ahead(int64_t row_bytes) {
  const int64_t lines = (row_bytes + kLine - 1) / kLine, ahead = 256 / (lines < kMostLines ? lines : kMostLines);
  return ahead < 64 ? ahead : 64;
}

template <int Writes>
GOSSAMER_INLINE void prefetch_row(const void* data, int64_t row, int64_t bytes) {
  const char* at = static_cast<const char*>(data) + row * bytes;
  const char* const end = at + (bytes < kMostLines * kLine ? bytes : kMostLines * kLine);
  for (; at < end; at += kLine) __builtin_prefetch(at, Writes);
  __builtin_prefetch(end - 1, Writes);  // a row need not start with a line
}

GOSSAMER_INLINE void prefetch_position(const Table& table, const Bags& bags, int64_t position) {
  const int64_t id = bags.ids[position], row = table.map ? table.map[id] : id;
  prefetch_row<0>(table.data, row, row_bytes(table.width, table.bits));
  if (table.by_row && table.scales) __builtin_prefetch(table.scales + row * table.scales_of_row());
}

// Positions that are asked for, one by one or many at once. A prefetch that waits for its address (a page that is not
// in the TLB) holds up what comes after it, and between rows that take many instructions few of them wait side by
// side: rounded rows are faster in bursts. Plain sums are short, and faster one by one.
template <bool InBursts>
struct Ahead {
  Ahead(const Table& table, int64_t first, int64_t last)
      : rows(rows_ahead(row_bytes(table.width, table.bits))), next(first), end(last) {}

  GOSSAMER_INLINE void come_to(const Table& table, const Bags& bags, int64_t position) {
    if constexpr (!InBursts) {
      if (position + rows < end) prefetch_position(table, bags, position + rows);
    } else if (position + rows / 4 >= next && next < end) {
      const int64_t until = end - next < rows ? end : next + rows;
      for (; next < until; ++next) prefetch_position(table, bags, next);
    }
  }

  int64_t rows, next, end;
};

}  // namespace
}  // namespace gossamer::table
