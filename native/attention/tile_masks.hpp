// SPDX-License-Identifier: Apache-2.0
// Which pairs of a tile attend: its mask from the list, cut by the range of keys that each query may see.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention.hpp"

namespace gossamer {

inline uint64_t low_bits(int64_t count) {
  return count <= 0 ? 0 : count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// bits[r] bit c becomes bits[c] bit r: halves are exchanged, then quarters, down to single bits.
inline void transpose_bits(uint64_t* bits) {
  uint64_t keep = 0x00000000ffffffffu;
  for (int step = 32; step; step >>= 1, keep ^= keep << step)
    for (int r = 0; r < 64; r = ((r | step) + 1) & ~step) {
      const uint64_t moved = ((bits[r] >> step) ^ bits[r | step]) & keep;
      bits[r] ^= moved << step;
      bits[r | step] ^= moved;
    }
}

// Bits of keys whose positions are at most `position`.
inline uint64_t not_behind(const int32_t* positions, int64_t keys, int32_t position) {
  uint8_t is[kTile] = {};
  for (int64_t j = 0; j < keys; ++j) is[j] = positions[j] <= position;
  uint64_t bits = 0;
  for (int64_t j = 0; j < kTile; j += 8) {
    uint64_t eight;
    std::memcpy(&eight, is + j, sizeof eight);
    bits |= (eight * 0x0102040810204080u >> 56) << j;  // eight bytes of 0 or 1 side by side
  }
  return bits;
}

class TileMask {
 public:
  // For each query bits over keys or, `by_key`, for each key bits over queries. `cuts_keys`: bits beyond the last
  // key are never set, for those whose lanes are keys.
  TileMask(const AttentionCall& c, int64_t batch, int64_t head, int64_t query, int64_t key, int32_t mask, bool by_key,
           bool cuts_keys) {
    const int64_t queries = std::min(kTile, c.queries - query), keys = std::min(kTile, c.keys - key);
    const bool cuts = cuts_keys && keys < kTile;
    if (!c.ranges && !c.positions && !cuts) {
      rows_ = mask < 0 ? nullptr : c.masks + mask * 2 * kTile + (by_key ? kTile : 0);
      return;
    }
    const uint64_t* const from = mask < 0 ? nullptr : c.masks + mask * 2 * kTile;
    uint64_t any = 0, every = ~uint64_t{0};
    for (int64_t i = 0; i < kTile; ++i) {
      uint64_t bits = i < queries ? low_bits(keys) : 0;
      if (from) bits &= from[i];
      if (c.ranges && i < queries) {
        const int32_t* const range = c.ranges + (batch * c.queries + query + i) * 2;
        bits &= low_bits(range[1] - key) & ~low_bits(range[0] - key);
      }
      if (c.positions && i < queries) {
        const int32_t* const positions = c.positions + (batch * c.heads + head) * c.queries;
        bits &= not_behind(positions + key, keys, positions[query + i]);
      }
      own_[i] = bits;
      any |= bits;
      if (i < queries) every &= bits | ~low_bits(keys);
    }
    is_empty_ = !any;
    if (!cuts && every == ~uint64_t{0}) return;
    if (by_key) transpose_bits(own_);
    rows_ = own_;
  }

  bool is_empty() const { return is_empty_; }
  const uint64_t* rows() const { return rows_; }  // null: all pairs

 private:
  const uint64_t* rows_ = nullptr;
  bool is_empty_ = false;
  uint64_t own_[kTile];
};

}  // namespace gossamer
