// SPDX-License-Identifier: Apache-2.0
#include "common.hpp"

#include <stdexcept>
#include <string>

#include "gossamer/bitmask.hpp"

namespace gossamer::bind {

void check_mask(const Bits& bits, int64_t rows, int64_t columns, int64_t num_values) {
  if (rows < 0 || columns < 0 || rows > (int64_t{1} << 31) || columns > (int64_t{1} << 31))
    throw std::invalid_argument("rows and columns must be in [0, 2^31]");
  const int64_t width = (columns + 7) / 8;
  if (static_cast<int64_t>(bits.shape(0)) != rows || static_cast<int64_t>(bits.shape(1)) != width)
    throw std::invalid_argument("mask_bits must have shape [rows, ceil(columns / 8)]");
  if (columns % 8)
    for (int64_t r = 0; r < rows; ++r)
      if (bits.data()[(r + 1) * width - 1] >> (columns % 8))
        throw std::invalid_argument("mask_bits has bits beyond the last column");
  const int64_t kept = count_mask(bits.data(), rows, columns);
  if (kept != num_values)
    throw std::invalid_argument("mask_bits keeps " + std::to_string(kept) + " weights but there are " +
                                std::to_string(num_values) + " values");
}

KeptWeight kept_weight(const Values& values, const Bits& bits, int64_t rows, int64_t columns) {
  check_mask(bits, rows, columns, static_cast<int64_t>(values.shape(0)));
  return {values.data(), bits.data(), rows, columns};
}

}  // namespace gossamer::bind
