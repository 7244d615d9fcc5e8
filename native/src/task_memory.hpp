// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <new>

namespace gossamer {

// Brings a failed allocation out of a parallel region: an exception that leaves a thread ends the process.
// Every loop over OpenMP threads runs its bodies through `attempt` and calls `check` behind the region.
class TaskMemory {
 public:
  // `task` gives false if it got no memory, or throws std::bad_alloc.
  template <class Task>
  void attempt(const Task& task) noexcept {
    try {
      if (!task()) failed_.store(true, std::memory_order_relaxed);
    } catch (const std::bad_alloc&) {
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  // Throws std::bad_alloc if a task failed.
  void check() const {
    if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
  }

 private:
  std::atomic<bool> failed_{false};
};

}  // namespace gossamer
