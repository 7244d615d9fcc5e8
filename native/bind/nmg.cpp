// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/row_groups_layout.hpp"

namespace gossamer::bind {
namespace {

constexpr int64_t kMaxGroup = 32, kMaxChoices = 256, kMaxTileColumns = (1 << 15) - 1;  // as patterns/nmg.py

int64_t num_choices(int64_t num_items, int64_t num_chosen) {
  int64_t product = 1;
  for (int64_t i = 1; i <= num_chosen; ++i) product = product * (num_items - num_chosen + i) / i;
  return product;
}

// Throws unless each column keeps n of each m rows and each tile uses all choices equally often.
void check_nmg(const KeptWeight& weight, int64_t n, int64_t m, int64_t repeats) {
  const std::string name = "nmg:" + std::to_string(n) + ":" + std::to_string(m) + ":" + std::to_string(repeats);
  if (n < kMinGroupKept || n > kMaxGroupKept || m < n || m > kMaxGroup || num_choices(m, n) > kMaxChoices)
    throw std::invalid_argument(name + ": this kernel needs " + std::to_string(kMinGroupKept) +
                                " <= n <= " + std::to_string(kMaxGroupKept) +
                                ", n <= m <= " + std::to_string(kMaxGroup) + " and at most " +
                                std::to_string(kMaxChoices) + " ways to keep n of m");
  const int64_t choices = num_choices(m, n);
  if (repeats < 1 || repeats > kMaxTileColumns / choices)
    throw std::invalid_argument(name + ": g must be in [1, " + std::to_string(kMaxTileColumns / choices) + "]");
  if (weight.rows % m || weight.columns % (choices * repeats))
    throw std::invalid_argument(name + ": rows must be divisible by " + std::to_string(m) + " and columns by " +
                                std::to_string(choices * repeats) + ", got " + std::to_string(weight.rows) +
                                " x " + std::to_string(weight.columns));
  std::vector<uint32_t> codes(static_cast<size_t>(choices * repeats));
  for (int64_t r = 0; r < weight.rows; r += m)
    for (int64_t k = 0; k < weight.columns; k += choices * repeats) {
      for (int64_t j = 0; j < choices * repeats; ++j) {
        codes[j] = 0;
        for (int64_t i = 0; i < m; ++i) codes[j] |= static_cast<uint32_t>(weight.keeps(r + i, k + j)) << i;
        const int kept = __builtin_popcount(codes[j]);
        if (kept != n)
          throw std::invalid_argument(name + ": mask_bits keeps " + std::to_string(kept) + " of rows " +
                                      std::to_string(r) + " to " + std::to_string(r + m - 1) + " in column " +
                                      std::to_string(k + j) + ", expected " + std::to_string(n));
      }
      // Equal use: sorted, each code fills its own run of `repeats`. There are no more codes than runs.
      std::sort(codes.begin(), codes.end());
      for (int64_t c = 0; c < choices; ++c)
        if (codes[c * repeats] != codes[(c + 1) * repeats - 1] || (c && codes[c * repeats] == codes[c * repeats - 1]))
          throw std::invalid_argument(name + ": mask_bits does not use each choice of rows in " +
                                      std::to_string(repeats) + " columns of the tile at row " + std::to_string(r) +
                                      ", column " + std::to_string(k));
    }
}

}  // namespace

void bind_nmg(nb::module_& m) {
  m.def(
      "pack_nmg",
      [](const Values& values, const Bits& bits, int64_t rows, int64_t columns, const std::string& kernels,
         int64_t num_kept, int64_t group, int64_t repeats) {
        const KeptWeight weight = kept_weight(values, bits, rows, columns);
        check_nmg(weight, num_kept, group, repeats);
        return pack_nmg_groups(weight, num_kept, group, repeats, find_isa(kernels));
      },
      nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"),
      nb::arg("kernels"), nb::arg("num_kept"), nb::arg("group"), nb::arg("repeats"));
}

}  // namespace gossamer::bind
