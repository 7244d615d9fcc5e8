// SPDX-License-Identifier: Apache-2.0
#include "gossamer/bitmask.hpp"

#include <cstring>
#include <vector>

#include "in_parallel.hpp"
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
  in_parallel(rows, num_threads, [&](int64_t r) { body(r, start[r]); });
}

template <class T>
void expand_row(const void* values, const uint8_t* bits, int64_t columns, void* row) {
  const T* value = static_cast<const T*>(values);
  T* to = static_cast<T*>(row);
  std::memset(to, 0, static_cast<size_t>(columns) * sizeof(T));
  each_kept_column({nullptr, bits, 1, columns}, 0, [&](int64_t k) { to[k] = *value++; });
}

template <class T>
void gather_row(const void* row, const uint8_t* bits, int64_t columns, void* values) {
  T* value = static_cast<T*>(values);
  const T* from = static_cast<const T*>(row);
  each_kept_column({nullptr, bits, 1, columns}, 0, [&](int64_t k) { *value++ = from[k]; });
}

template <class T>
constexpr BitmaskKernels plain = {expand_row<T>, gather_row<T>};

const BitmaskKernels& kernels_of(int itemsize, Isa isa) {
#ifdef GOSSAMER_X86
  if (isa == Isa::avx512 && itemsize == 2) return avx512::bitmask_kernels_2;
  if (isa == Isa::avx512 && itemsize == 4) return avx512::bitmask_kernels_4;
#endif
  (void)isa;
  return itemsize == 2 ? plain<uint16_t> : itemsize == 4 ? plain<uint32_t> : plain<uint64_t>;
}

}  // namespace

int64_t count_mask(const uint8_t* mask_bits, int64_t rows, int64_t columns) {
  return count_bits(mask_bits, rows * row_bytes(columns));
}

void expand_mask(const void* values, const uint8_t* mask_bits, int64_t rows, int64_t columns,
                 int itemsize, void* dense, Isa isa, int num_threads) {
  const BitmaskKernels& kernels = kernels_of(itemsize, isa);
  each_row(mask_bits, rows, columns, num_threads, [&](int64_t r, int64_t first) {
    kernels.expand(static_cast<const char*>(values) + first * itemsize, mask_bits + r * row_bytes(columns), columns,
                   static_cast<char*>(dense) + r * columns * itemsize);
  });
}

void gather_mask(const void* dense, const uint8_t* mask_bits, int64_t rows, int64_t columns,
                 int itemsize, void* values, Isa isa, int num_threads) {
  const BitmaskKernels& kernels = kernels_of(itemsize, isa);
  each_row(mask_bits, rows, columns, num_threads, [&](int64_t r, int64_t first) {
    kernels.gather(static_cast<const char*>(dense) + r * columns * itemsize, mask_bits + r * row_bytes(columns), columns,
                   static_cast<char*>(values) + first * itemsize);
  });
}

}  // namespace gossamer
