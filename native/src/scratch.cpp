// SPDX-License-Identifier: Apache-2.0
#include "gossamer/scratch.hpp"

#include <cstdlib>
#include <memory>

namespace gossamer {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

struct Buffer {
  std::unique_ptr<void, Free> memory;
  size_t capacity = 0;
};

}  // namespace

void* thread_scratch(size_t bytes, Scratch use) {
  thread_local Buffer buffers[2];
  auto& [buffer, capacity] = buffers[static_cast<int>(use)];
  if (bytes > capacity) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    buffer.reset();
    buffer.reset(std::aligned_alloc(64, rounded));
    capacity = buffer ? rounded : 0;
  }
  return buffer.get();
}

}  // namespace gossamer
