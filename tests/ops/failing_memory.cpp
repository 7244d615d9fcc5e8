// SPDX-License-Identifier: Apache-2.0
// Preloaded by memory_drill.py: lets one allocation that is made from watched code fail.
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

struct Range {
  uintptr_t first, last;
};
Range ranges[16];
int num_ranges = 0;
std::atomic<bool> armed{false};
std::atomic<long> left{0}, met{0};

// Whether the allocation that is asked for by code at `caller` is the one to fail.
bool fails(const void* caller) {
  if (!armed.load()) return false;
  const auto at = reinterpret_cast<uintptr_t>(caller);
  for (int i = 0; i < num_ranges; ++i)
    if (at >= ranges[i].first && at < ranges[i].last) {
      ++met;
      return left.fetch_sub(1) == 0;
    }
  return false;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

void watch(uintptr_t first, uintptr_t last) { ranges[num_ranges++] = {first, last}; }
void forget() { num_ranges = 0; }
// The allocation behind `count` others fails.
void arm(long count) {
  left = count;
  met = 0;
  armed = true;
}
// How many were met.
long disarm() {
  armed = false;
  return met;
}

void* aligned_alloc(size_t alignment, size_t size) {
  static const auto real = next<void* (*)(size_t, size_t)>("aligned_alloc");
  return fails(__builtin_return_address(0)) ? nullptr : real(alignment, size);
}

int posix_memalign(void** memory, size_t alignment, size_t size) {
  static const auto real = next<int (*)(void**, size_t, size_t)>("posix_memalign");
  return fails(__builtin_return_address(0)) ? ENOMEM : real(memory, alignment, size);
}

void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  static const auto real = next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
  if (fails(__builtin_return_address(0))) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return real(at, size, protection, flags, file, offset);
}

}  // extern "C"

void* operator new(size_t size) {
  void* memory = fails(__builtin_return_address(0)) ? nullptr : std::malloc(size ? size : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
