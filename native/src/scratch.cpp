// SPDX-License-Identifier: Apache-2.0
#include "gossamer/scratch.hpp"

#include <cstdlib>
#include <memory>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

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
#ifdef __SANITIZE_ADDRESS__
  // A buffer that has grown would hide what is written behind a smaller request.
  if (buffer) {
    auto* begin = static_cast<char*>(buffer.get());
    __asan_unpoison_memory_region(begin, bytes);
    __asan_poison_memory_region(begin + bytes, capacity - bytes);
  }
#endif
  return buffer.get();
}

}  // namespace gossamer
