// SPDX-License-Identifier: Apache-2.0
#include "gossamer/big_alloc.hpp"

#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#endif

namespace gossamer {

#ifdef __linux__
namespace {

size_t whole_pages(size_t bytes) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// `size` bytes, a multiple of the page size, at a multiple of `alignment`. Mapped directly: malloc would
// hand the advised range to others after a free. What the alignment leaves over at both ends is given back.
char* map_aligned(size_t size, size_t alignment) {
  const size_t reserved = size + alignment;
  void* mapped = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  char* begin = static_cast<char*>(mapped);
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
  if (before) munmap(begin, before);
  munmap(begin + before + size, reserved - before - size);
#ifdef MADV_HUGEPAGE
  (void)madvise(begin + before, size / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish: refused, pages stay small
#endif
  return begin + before;
}

// Address space that arrays are cut from one behind the other; what is not written to takes no memory.
// It starts at a multiple of its size, so that an array finds it.
constexpr size_t kArena = size_t{64} << 20;
struct Arena {
  alignas(64) size_t used = 64;
  size_t arrays = 0;
};
std::mutex arena_lock;
Arena* newest_arena = nullptr;

size_t arena_bytes(size_t bytes) { return (bytes + 63) / 64 * 64; }

void* arena_alloc(size_t bytes) {
  const std::lock_guard<std::mutex> guard(arena_lock);
  if (!newest_arena || newest_arena->used + arena_bytes(bytes) > kArena)
    newest_arena = new (map_aligned(kArena, kArena)) Arena;
  char* array = reinterpret_cast<char*>(newest_arena) + newest_arena->used;
  newest_arena->used += arena_bytes(bytes);
  ++newest_arena->arrays;
  return array;
}

void arena_free(char* array, size_t bytes) noexcept {
  const std::lock_guard<std::mutex> guard(arena_lock);
  auto* arena = reinterpret_cast<Arena*>(reinterpret_cast<uintptr_t>(array) / kArena * kArena);
  if (--arena->arrays == 0) {
    if (arena == newest_arena) newest_arena = nullptr;
    munmap(arena, kArena);
    return;
  }
  // Its whole pages go back now, others wait for their neighbours.
  const uintptr_t page = whole_pages(1), begin = (reinterpret_cast<uintptr_t>(array) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(array) + bytes) / page * page;
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

void* big_alloc(size_t bytes) {
  if (bytes < kShared) return ::operator new(bytes);
  return bytes < kHugePage ? arena_alloc(bytes) : map_aligned(whole_pages(bytes), kHugePage);
}

void big_free(void* memory, size_t bytes) noexcept {
  if (bytes < kShared) return ::operator delete(memory);
  if (bytes < kHugePage) return arena_free(static_cast<char*>(memory), bytes);
  munmap(memory, whole_pages(bytes));
}

void offer_huge_pages(void* memory, size_t bytes) noexcept {
#ifndef MADV_COLLAPSE
  constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1; others refuse it
#endif
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (at + kHugePage - 1) / kHugePage * kHugePage, end = (at + bytes) / kHugePage * kHugePage;
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_COLLAPSE);
}

void clear_pages(void* memory, size_t bytes) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (at + kHugePage - 1) / kHugePage * kHugePage, end = (at + bytes) / kHugePage * kHugePage;
  if (begin >= end || madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) != 0) {
    std::memset(memory, 0, bytes);
    return;
  }
  std::memset(memory, 0, begin - at);
  std::memset(reinterpret_cast<void*>(end), 0, at + bytes - end);
}
#else
void offer_huge_pages(void*, size_t) noexcept {}
void clear_pages(void* memory, size_t bytes) noexcept { std::memset(memory, 0, bytes); }
void* big_alloc(size_t bytes) { return ::operator new(bytes); }
void big_free(void* memory, size_t) noexcept { ::operator delete(memory); }
#endif

}  // namespace gossamer
