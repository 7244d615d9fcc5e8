// SPDX-License-Identifier: Apache-2.0
// Tasks over torch's OpenMP threads, as the drivers of kernels cut their work.
#pragma once
#include <cstdint>

#include "task_memory.hpp"

namespace gossamer {

// task(i) for every i below num_tasks, on up to num_threads threads (see usable_threads). A task gives false
// if it got no scratch, or throws std::bad_alloc; that is thrown when all are done.
template <class Task>
void run_tasks(int64_t num_tasks, int num_threads, Task&& task) {
  TaskMemory memory;
  if (num_threads <= 1 || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) memory.attempt([&] { return task(i); });
  } else {
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
    for (int64_t i = 0; i < num_tasks; ++i) memory.attempt([&] { return task(i); });
  }
  memory.check();
}

// task(token tile, first row tile, last row tile). Token tiles share nothing; row tiles of one token tile
// each pay for its transposition again, so they are apart only where threads would have nothing to do.
template <class Task>
void run_tiles(int64_t num_token_tiles, int64_t num_row_tiles, int num_threads, Task&& task) {
  const bool whole = num_token_tiles % num_threads == 0 || num_token_tiles >= 4 * num_threads;
  const int64_t splits = whole ? 1 : num_row_tiles;
  run_tasks(num_token_tiles * splits, num_threads, [&](int64_t i) {
    const int64_t part = i % splits;
    return task(i / splits, splits == 1 ? 0 : part, splits == 1 ? num_row_tiles : part + 1);
  });
}

}  // namespace gossamer
