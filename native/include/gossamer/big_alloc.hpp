// SPDX-License-Identifier: Apache-2.0
// Memory for arrays that are streamed: whole 2 MiB pages where the system has them. A kernel that reads
// a weight once per call waits for address translation, and the processor's prefetch stops at the end
// of a page: reading 16 MiB from memory took 1.3 times as long from 4 KiB pages on a Zen 3.
#pragma once
#include <cstddef>
#include <limits>
#include <new>
#include <vector>

namespace gossamer {

// Throws std::bad_alloc. From kHugePage bytes on the memory starts at a multiple of that and is offered
// to the system for huge pages, except for what does not fill one at the end. Arrays from kShared bytes on
// share huge pages: the layers of a small model are smaller than one, and all of them are streamed.
// Below it is plain memory.
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kShared = size_t{32} << 10;
void* big_alloc(size_t bytes);
void big_free(void* memory, size_t bytes) noexcept;
// Moves memory of anybody into huge pages where the system can, and leaves it as it is elsewhere. What it holds
// stays. It takes about as long as copying it.
void offer_huge_pages(void* memory, size_t bytes) noexcept;
// Zeros in memory that is no file's and nobody else's. Whole pages of 2 MiB go back to the system instead of being written.
void clear_pages(void* memory, size_t bytes) noexcept;

template <class T>
struct BigAllocator {
  using value_type = T;
  BigAllocator() = default;
  template <class U>
  BigAllocator(const BigAllocator<U>&) {}

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / 2 / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(big_alloc(count * sizeof(T)));
  }
  void deallocate(T* memory, size_t count) noexcept { big_free(memory, count * sizeof(T)); }
  template <class U>
  bool operator==(const BigAllocator<U>&) const { return true; }
  template <class U>
  bool operator!=(const BigAllocator<U>&) const { return false; }
};

template <class T>
using BigVector = std::vector<T, BigAllocator<T>>;

}  // namespace gossamer
