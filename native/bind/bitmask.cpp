// SPDX-License-Identifier: Apache-2.0
#include "gossamer/bitmask.hpp"

#include <omp.h>

#include <stdexcept>

#include "common.hpp"
#include "families.hpp"

namespace gossamer::bind {
namespace {

enum class Move { expand, gather };

// Both directions take the same arguments: addresses of the values and of the dense matrix.
template <Move move>
void move_values(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns, int itemsize,
                 uintptr_t dense, const std::string& kernels) {
  const int64_t rows = static_cast<int64_t>(bits.shape(0));
  check_mask(bits, rows, columns, num_values);
  if (itemsize != 2 && itemsize != 4 && itemsize != 8)
    throw std::invalid_argument("itemsize must be 2, 4 or 8");
  if ((num_values > 0 && !values) || (rows > 0 && columns > 0 && !dense))
    throw std::invalid_argument("values and dense must not be null");
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  const int threads = omp_get_max_threads();
  if constexpr (move == Move::expand)
    expand_mask(reinterpret_cast<void*>(values), bits.data(), rows, columns, itemsize,
                reinterpret_cast<void*>(dense), isa, threads);
  else
    gather_mask(reinterpret_cast<void*>(dense), bits.data(), rows, columns, itemsize,
                reinterpret_cast<void*>(values), isa, threads);
}

}  // namespace

void bind_bitmask(nb::module_& m) {
  m.def("expand", &move_values<Move::expand>, nb::arg("values"), nb::arg("num_values"),
        nb::arg("mask_bits").noconvert(), nb::arg("columns"), nb::arg("itemsize"), nb::arg("dense"),
        nb::arg("kernels"));
  m.def("gather", &move_values<Move::gather>, nb::arg("values"), nb::arg("num_values"),
        nb::arg("mask_bits").noconvert(), nb::arg("columns"), nb::arg("itemsize"), nb::arg("dense"),
        nb::arg("kernels"));
}

}  // namespace gossamer::bind
