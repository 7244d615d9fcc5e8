// SPDX-License-Identifier: Apache-2.0
// A packed weight as a file holds it: some numbers, and arrays that kernels read where they lie. Whoever restores one
// checks that every array has the size and every index the range that kernels assume.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

constexpr size_t kStoredAlignment = 64;  // of every array

struct StoredArray {
  const void* data = nullptr;
  size_t bytes = 0;
};

struct StoredWeight {
  std::string family;
  std::vector<int64_t> numbers;
  std::vector<StoredArray> arrays;
};

// Keeps the memory of the arrays of a restored weight.
using Keeper = std::shared_ptr<const void>;

// Throws std::invalid_argument where a file says what no packing gives.
std::unique_ptr<PackedWeight> restore_weight(const StoredWeight& stored, Isa isa, Keeper keeper);

// One for each family that can be stored.
std::unique_ptr<PackedWeight> restore_few(const StoredWeight& stored, Isa isa, Keeper keeper);
std::unique_ptr<PackedWeight> restore_few_int(const StoredWeight& stored, Isa isa, Keeper keeper);

// Hands out numbers and arrays in the order in which they were stored.
class StoredReader {
 public:
  explicit StoredReader(const StoredWeight& stored) : stored_(stored) {}

  // The next number, which is in [lowest, highest].
  int64_t number(int64_t lowest, int64_t highest);
  // The next array, of `count` items; null if there are none.
  template <class T>
  const T* array(int64_t count) {
    return static_cast<const T*>(bytes(count, sizeof(T)));
  }
  // The next array, of any number of items.
  template <class T>
  const T* array_of(int64_t* count) {
    *count = static_cast<int64_t>(next().bytes / sizeof(T));
    --array_;
    return array<T>(*count);
  }
  // Throws unless all of them were read.
  void done() const;

  static void expect(bool holds, const char* what);

 private:
  const StoredArray& next();
  const void* bytes(int64_t count, size_t item);

  const StoredWeight& stored_;
  size_t number_ = 0, array_ = 0;
};

constexpr int64_t kMaxStored = int64_t{1} << 31;  // rows, columns

}  // namespace gossamer
