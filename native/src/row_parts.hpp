// SPDX-License-Identifier: Apache-2.0
// Rows of a weight over threads, as kernels for few tokens cut their work.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {

// kernel(first row, last row, scratch) on up to num_threads threads, each of which gets at least
// `bytes_per_thread` of a weight of `bytes`; first rows are multiples of `unit`.
template <class Kernel>
void run_row_parts(int64_t rows, int64_t unit, size_t bytes, size_t bytes_per_thread, size_t scratch_bytes,
                   int num_threads, Kernel&& kernel) {
  const int64_t worth = std::max<int64_t>(static_cast<int64_t>(bytes / bytes_per_thread), 1);
  const int64_t units = (rows + unit - 1) / unit;
  const int64_t parts = std::min({int64_t{usable_threads(num_threads)}, worth, std::max<int64_t>(units, 1)});
  run_tasks(parts, static_cast<int>(parts), [&](int64_t i) {
    void* scratch = thread_scratch(scratch_bytes);
    if (scratch) kernel(units * i / parts * unit, std::min(units * (i + 1) / parts * unit, rows), scratch);
    return scratch != nullptr;
  });
}

}  // namespace gossamer
