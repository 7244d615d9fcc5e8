// SPDX-License-Identifier: Apache-2.0
#include "results.hpp"

#include <algorithm>

#include "gossamer/big_alloc.hpp"

namespace gossamer {
namespace {

constexpr uint64_t kAge = 64;  // results that were taken since; a step of a few layers takes ten

}  // namespace

std::vector<Results::Block> Results::outdated() {
  size_t gone = 0, held = in_use_ + free_bytes_;
  while (gone < free_.size() && (held > most_in_use_ || taken_ - free_[gone].given > kAge)) held -= free_[gone++].bytes;
  const auto end = free_.begin() + static_cast<std::ptrdiff_t>(gone);
  std::vector<Block> old(free_.begin(), end);
  free_.erase(free_.begin(), end);
  free_bytes_ = held - in_use_;
  return old;
}

void* Results::take(size_t bytes) {
  std::vector<Block> old;
  void* found = nullptr;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    free_.reserve(free_.size() + blocks_in_use_ + 1);  // `give` must not fail
    // The newest of its size, which caches may still hold.
    const auto same = std::find_if(free_.rbegin(), free_.rend(), [&](const Block& b) { return b.bytes == bytes; });
    if (same != free_.rend()) {
      found = same->memory;
      free_bytes_ -= bytes;
      free_.erase(std::next(same).base());
    }
    ++taken_, ++blocks_in_use_;
    in_use_ += bytes;
    most_in_use_ = std::max(most_in_use_, in_use_);
    old = outdated();
  }
  for (const Block& block : old) big_free(block.memory, block.bytes);
  if (found) return found;
  try {
    return big_alloc(bytes);
  } catch (...) {
    const std::lock_guard<std::mutex> guard(lock_);
    --blocks_in_use_, in_use_ -= bytes;
    throw;
  }
}

void Results::give(void* memory, size_t bytes) noexcept {
  const std::lock_guard<std::mutex> guard(lock_);
  --blocks_in_use_, in_use_ -= bytes;
  free_.push_back({memory, bytes, taken_});
  free_bytes_ += bytes;
}

void Results::drop() {
  std::vector<Block> all;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    all = free_;
    free_.clear();  // keeps its room
    free_bytes_ = 0;
    most_in_use_ = in_use_;
  }
  for (const Block& block : all) big_free(block.memory, block.bytes);
}

Results::Sizes Results::sizes() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return {in_use_, free_bytes_};
}

Results& results() {
  static Results* const all = new Results;  // never destroyed: tensors may be freed while the process ends
  return *all;
}

}  // namespace gossamer
