// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "gossamer/fork.hpp"
#include "task_memory.hpp"

namespace gossamer {

// Calls body(0), ..., body(count - 1), which must not touch the same memory and throw nothing but
// std::bad_alloc; that is thrown when all are done.
template <class Body>
void in_parallel(int64_t count, int num_threads, Body body) {
  num_threads = usable_threads(num_threads);
  TaskMemory memory;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && count > 1)
  for (int64_t i = 0; i < count; ++i) memory.attempt([&] { return body(i), true; });
  memory.check();
}

}  // namespace gossamer
