// SPDX-License-Identifier: Apache-2.0
#include "gossamer/bitmask.hpp"

#include <cstring>
#include <vector>

#include "gossamer/fork.hpp"
#include "kept_columns.hpp"

namespace gossamer {
namespace {

int64_t row_bytes(int64_t columns) { return (columns + 7) / 8; }

// Calls body(row, first kept value of the row), rows shared among threads.
template <class Body>
void each_row(const uint8_t* mask_bits, int64_t rows, int64_t columns, int num_threads, Body body) {
  const int64_t bytes = row_bytes(columns);
  std::vector<int64_t> start(static_cast<size_t>(rows) + 1, 0);
  for (int64_t r = 0; r < rows; ++r) start[r + 1] = start[r] + count_bits(mask_bits + r * bytes, bytes);
  // Below this a second thread costs more than it saves.
  if (rows * columns < 65536) num_threads = 1;
#pragma omp parallel for num_threads(usable_threads(num_threads)) if (usable_threads(num_threads) > 1)
  for (int64_t r = 0; r < rows; ++r) body(r, start[r]);
}

template <class T>
void expand(const void* values, const uint8_t* mask_bits, int64_t rows, int64_t columns, void* dense,
            int num_threads) {
  each_row(mask_bits, rows, columns, num_threads, [&](int64_t r, int64_t first) {
    const T* value = static_cast<const T*>(values) + first;
    T* row = static_cast<T*>(dense) + r * columns;
    std::memset(row, 0, static_cast<size_t>(columns) * sizeof(T));
    each_kept_column({nullptr, mask_bits, rows, columns}, r, [&](int64_t k) { row[k] = *value++; });
  });
}

template <class T>
void gather(const void* dense, const uint8_t* mask_bits, int64_t rows, int64_t columns, void* values,
            int num_threads) {
  each_row(mask_bits, rows, columns, num_threads, [&](int64_t r, int64_t first) {
    T* value = static_cast<T*>(values) + first;
    const T* row = static_cast<const T*>(dense) + r * columns;
    each_kept_column({nullptr, mask_bits, rows, columns}, r, [&](int64_t k) { *value++ = row[k]; });
  });
}

}  // namespace

int64_t count_mask(const uint8_t* mask_bits, int64_t rows, int64_t columns) {
  return count_bits(mask_bits, rows * row_bytes(columns));
}

void expand_mask(const void* values, const uint8_t* mask_bits, int64_t rows, int64_t columns,
                 int itemsize, void* dense, int num_threads) {
  const auto run = itemsize == 2 ? expand<uint16_t> : itemsize == 4 ? expand<uint32_t> : expand<uint64_t>;
  run(values, mask_bits, rows, columns, dense, num_threads);
}

void gather_mask(const void* dense, const uint8_t* mask_bits, int64_t rows, int64_t columns,
                 int itemsize, void* values, int num_threads) {
  const auto run = itemsize == 2 ? gather<uint16_t> : itemsize == 4 ? gather<uint32_t> : gather<uint64_t>;
  run(dense, mask_bits, rows, columns, values, num_threads);
}

}  // namespace gossamer
