// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include <cstring>
#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/row_groups_layout.hpp"

namespace gossamer::bind {
namespace {

// Throws unless the rows of each block keep the same columns.
void check_blocks(const KeptWeight& weight, int64_t block_rows) {
  if (block_rows < 2)
    throw std::invalid_argument("block_rows must be at least 2, got " + std::to_string(block_rows));
  const int64_t stride = weight.mask_stride();
  for (int64_t r = 0; r < weight.rows; ++r) {
    const int64_t first = r / block_rows * block_rows;
    if (std::memcmp(weight.mask_bits + first * stride, weight.mask_bits + r * stride, stride))
      throw std::invalid_argument("mask_bits: rows of a block of " + std::to_string(block_rows) +
                                  " must keep the same columns, but rows " + std::to_string(first) + " and " +
                                  std::to_string(r) + " differ");
  }
}

}  // namespace

void bind_strip(nb::module_& m) {
  m.def(
      "pack_strip",
      [](const Values& values, const Bits& bits, int64_t rows, int64_t columns, const std::string& kernels,
         int64_t block_rows) {
        const KeptWeight weight = kept_weight(values, bits, rows, columns);
        check_blocks(weight, block_rows);
        const Isa isa = find_isa(kernels);
        return pack_block_groups(weight, block_rows, isa);
      },
      nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"),
      nb::arg("kernels"), nb::arg("block_rows"));
}

}  // namespace gossamer::bind
