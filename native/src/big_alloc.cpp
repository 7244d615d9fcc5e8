// SPDX-License-Identifier: Apache-2.0
#include "gossamer/big_alloc.hpp"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace gossamer {

#ifdef __linux__
namespace {

size_t whole_pages(size_t bytes) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

// Mapped directly: malloc would hand the advised range to others after a free. What the alignment
// leaves over at both ends is given back.
void* big_alloc(size_t bytes) {
  if (bytes < kHugePage) return ::operator new(bytes);
  const size_t size = whole_pages(bytes), reserved = size + kHugePage;
  void* mapped = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  char* begin = static_cast<char*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before) munmap(begin, before);
  munmap(begin + before + size, reserved - before - size);
#ifdef MADV_HUGEPAGE
  (void)madvise(begin + before, size / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish: refused, pages stay small
#endif
  return begin + before;
}

void big_free(void* memory, size_t bytes) noexcept {
  if (bytes < kHugePage) return ::operator delete(memory);
  munmap(memory, whole_pages(bytes));
}
#else
void* big_alloc(size_t bytes) { return ::operator new(bytes); }
void big_free(void* memory, size_t) noexcept { ::operator delete(memory); }
#endif

}  // namespace gossamer
