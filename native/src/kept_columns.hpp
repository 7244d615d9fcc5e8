// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>

#include "gossamer/packed_weight.hpp"
#include "mask_bytes.hpp"

namespace gossamer {

// Calls visit(column) for the kept columns of one row, ascending.
template <class Visit>
void each_kept_column(const KeptWeight& weight, int64_t row, Visit visit) {
  constexpr int64_t kBytes = 128;  // offsets of 1024 columns fit into 16 bits
  const uint8_t* bits = weight.mask_bits + row * weight.mask_stride();
  uint16_t decoded[kBytes * 8 + 8];
  for (int64_t i = 0; i < weight.mask_stride(); i += kBytes) {
    const int kept = decode(bits + i, std::min(kBytes, weight.mask_stride() - i), decoded);
    for (int j = 0; j < kept; ++j) visit(i * 8 + decoded[j] / kOffsetUnit);
  }
}

}  // namespace gossamer
