// SPDX-License-Identifier: Apache-2.0
// Packed mask bits to column offsets and counts, a byte at a time.
#pragma once
#include <cstdint>
#include <cstring>

#include "gossamer/panel.hpp"

namespace gossamer {

// Eight numbers in one register, in the baseline of every compiler target.
typedef uint16_t Octet __attribute__((vector_size(16)));

// Of every byte value: how many bits are set, the offsets of their columns, and the bits as numbers. A
// walk over set bits would mispredict its end in every word; looking bytes up never does.
struct ByteTable {
  Octet offset[256] = {}, bit[256] = {};
  uint8_t count[256] = {};

  ByteTable() {
    for (int byte = 0; byte < 256; ++byte)
      for (int i = 0; i < 8; ++i) {
        bit[byte][i] = byte >> i & 1;
        if (bit[byte][i]) offset[byte][count[byte]++] = static_cast<uint16_t>(i * kOffsetUnit);
      }
  }
};
static const ByteTable table;

// The offsets of the kept columns of a block of one row. `offsets` has room for 8 more than there are.
static inline int decode(const uint8_t* bits, int64_t num_bytes, uint16_t* offsets) {
  uint16_t* end = offsets;
  Octet base = {};
  const auto take = [&](unsigned byte) {
    const Octet eight = table.offset[byte] + base;
    std::memcpy(end, &eight, sizeof eight);
    base += 8 * kOffsetUnit;
    end += table.count[byte];
  };
  int64_t i = 0;
  // Four bytes at a time: read one by one, each would be read again after the store, at half the speed.
  for (; i + 4 <= num_bytes; i += 4) {
    uint32_t four;
    std::memcpy(&four, bits + i, 4);
#pragma GCC unroll 4
    for (int b = 0; b < 32; b += 8) take(four >> b & 255);
  }
  for (; i < num_bytes; ++i) take(bits[i]);
  return static_cast<int>(end - offsets);
}

// Bits of each byte of a word.
static inline uint64_t counts_of_bytes(const uint8_t* bits) {
  uint64_t word;
  std::memcpy(&word, bits, 8);
  word -= word >> 1 & 0x5555555555555555;
  word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
  return (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
}

static inline int64_t sum_of_bytes(uint64_t word) {
  const uint64_t low = word & 0x00ff00ff00ff00ff, high = word >> 8 & 0x00ff00ff00ff00ff;
  return static_cast<int64_t>((low + high) * 0x0001000100010001 >> 48);
}

// Without the popcount instruction, which the baseline lacks: the library's function takes three times as long
// for a word, and twenty times for a byte.
static inline int64_t count_bits(const uint8_t* bits, int64_t num_bytes) {
  constexpr int64_t kWords = 31;  // a byte holds the sum of so many counts
  int64_t kept = 0, i = 0;
  for (; i + kWords * 8 <= num_bytes; i += kWords * 8) {
    uint64_t sums = 0;
    for (int64_t w = 0; w < kWords; ++w) sums += counts_of_bytes(bits + i + w * 8);
    kept += sum_of_bytes(sums);
  }
  for (; i + 8 <= num_bytes; i += 8) kept += sum_of_bytes(counts_of_bytes(bits + i));
  for (; i < num_bytes; ++i) kept += table.count[bits[i]];
  return kept;
}

}  // namespace gossamer
