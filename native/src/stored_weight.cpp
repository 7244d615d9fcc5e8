// SPDX-License-Identifier: Apache-2.0
#include "gossamer/stored_weight.hpp"

#include <stdexcept>
#include <utility>

namespace gossamer {

std::unique_ptr<PackedWeight> restore_weight(const StoredWeight& stored, Isa isa, Keeper keeper) {
  if (stored.family == "few_int") return restore_few_int(stored, isa, std::move(keeper));
  if (stored.family == "few") return restore_few(stored, isa, std::move(keeper));
  throw std::invalid_argument("stored weight: there is no family '" + stored.family + "'");
}

void StoredReader::expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("stored weight: ") + what);
}

int64_t StoredReader::number(int64_t lowest, int64_t highest) {
  expect(number_ < stored_.numbers.size(), "numbers are missing");
  const int64_t found = stored_.numbers[number_++];
  expect(found >= lowest && found <= highest, "a number is out of its range");
  return found;
}

const StoredArray& StoredReader::next() {
  expect(array_ < stored_.arrays.size(), "arrays are missing");
  return stored_.arrays[array_++];
}

const void* StoredReader::bytes(int64_t count, size_t item) {
  const StoredArray& found = next();
  expect(count >= 0 && static_cast<size_t>(count) <= SIZE_MAX / item && found.bytes == static_cast<size_t>(count) * item,
         "an array has the wrong size");
  expect(!found.bytes || reinterpret_cast<uintptr_t>(found.data) % kStoredAlignment == 0, "an array is not aligned");
  return found.bytes ? found.data : nullptr;
}

void StoredReader::done() const {
  expect(number_ == stored_.numbers.size() && array_ == stored_.arrays.size(), "there are more parts than expected");
}

}  // namespace gossamer
