// SPDX-License-Identifier: Apache-2.0
// Memory of large results, used again.
//
// malloc of glibc gives every array of more than 32 MB back to the system when it is freed. A step of a large graph
// frees many, and mapping and clearing their pages again took more than half of it. A result that is freed stays here
// for the next one of its size, in pages of 2 MiB where the system has them.
//
// What is held in all is never more than was in use at once: before more memory is mapped, free blocks are unmapped,
// oldest first. So are blocks that nobody took for a while.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace gossamer {

class Results {
 public:
  // Throws std::bad_alloc.
  void* take(size_t bytes);
  void give(void* memory, size_t bytes) noexcept;
  // Unmaps all that is free.
  void drop();

  struct Sizes {
    size_t in_use, free;
  };
  Sizes sizes() const;

 private:
  struct Block {
    void* memory;
    size_t bytes;
    uint64_t given;
  };
  // Takes those out of the list that must go; the caller unmaps them when it has left the lock.
  std::vector<Block> outdated();

  mutable std::mutex lock_;
  std::vector<Block> free_;  // oldest first
  size_t in_use_ = 0, most_in_use_ = 0, free_bytes_ = 0;
  uint64_t taken_ = 0;
  size_t blocks_in_use_ = 0;
};

// The one of the process; it lives as long as that.
Results& results();

}  // namespace gossamer
