// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "table/table.hpp"

namespace gossamer::table {
namespace {

template <int N>
struct Number {
  static constexpr int value = N;
};

// Up to sixteen whole numbers as codes; what is behind the last one is zero.
inline void store_codes(const int8_t* whole, int count, int bits, uint8_t* to) {
  if (bits == 8) {
    for (int i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(whole[i]);
    return;
  }
  const int each = 8 / bits, middle = 1 << (bits - 1);
  for (int byte = 0; byte * each < count; ++byte) {
    int held = 0;
    for (int i = 0; i < each && byte * each + i < count; ++i) held |= (whole[byte * each + i] + middle) << (i * bits);
    to[byte] = static_cast<uint8_t>(held);
  }
}

inline int64_t counted(const Bags& bags, int64_t from, int64_t to) {
  int64_t found = 0;
  for (int64_t p = from; p < to; ++p) found += bags.ids[p] != bags.padding;
  return found;
}

}  // namespace
}  // namespace gossamer::table
