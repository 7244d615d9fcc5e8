// SPDX-License-Identifier: Apache-2.0
// Where kept bytes stand, for shuffles that spread them.
#pragma once
#include <cstdint>

namespace gossamer {
namespace {

// By mask of 8 columns, for each column: where its value stands among the kept ones. Dropped columns have
// the top bit, which byte shuffles and blends read. The second half of 16 bytes counts from 8.
struct ByteRanks {
  uint8_t of[256][8], second[256][8];
  constexpr ByteRanks() : of(), second() {
    for (int mask = 0; mask < 256; ++mask) {
      int kept = 0;
      for (int j = 0; j < 8; ++j) {
        const bool keeps = mask >> j & 1;
        of[mask][j] = static_cast<uint8_t>(keeps ? kept : 0x80);
        second[mask][j] = static_cast<uint8_t>(keeps ? 8 + kept : 0x80);
        kept += keeps;
      }
    }
  }
};
constexpr ByteRanks byte_ranks;

}  // namespace
}  // namespace gossamer
