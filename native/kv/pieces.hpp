// SPDX-License-Identifier: Apache-2.0
// Memory of a thread, cut into aligned pieces; false if there was none.
#pragma once
#include <cstdint>

#include "gossamer/scratch.hpp"

namespace gossamer {

class KvPieces {
 public:
  static constexpr int64_t kUnit = 64;

  explicit KvPieces(int64_t bytes) : at_(static_cast<char*>(thread_scratch(static_cast<size_t>(bytes)))) {}
  explicit operator bool() const { return at_; }
  template <class T>
  T* take(int64_t count) {
    char* const piece = at_;
    at_ += (count * static_cast<int64_t>(sizeof(T)) + kUnit - 1) / kUnit * kUnit;
    return reinterpret_cast<T*>(piece);
  }

 private:
  char* at_;
};

}  // namespace gossamer
