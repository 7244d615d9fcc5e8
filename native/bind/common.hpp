// SPDX-License-Identifier: Apache-2.0
// What the bindings share. Everything that comes from Python is validated in this folder; kernels
// assume valid arguments.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <vector>

#include "gossamer/dword_layout.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer::bind {

namespace nb = nanobind;

using Values = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Throws std::invalid_argument unless the bits are [rows, ceil(columns / 8)], hold nothing behind
// the last column and keep `num_values` weights.
void check_mask(const Bits& bits, int64_t rows, int64_t columns, int64_t num_values);

// The canonical arrays of a weight, checked.
KeptWeight kept_weight(const Values& values, const Bits& bits, int64_t rows, int64_t columns);

// The items of a Python list or tuple. nanobind's own way to vectors is noexcept: a list for which there is no
// memory would end the process.
template <class Item>
std::vector<Item> items_of(const nb::sequence& list) {
  std::vector<Item> items;
  try {
    for (const nb::handle item : list) items.push_back(nb::cast<Item>(item));
  } catch (const nb::cast_error&) {
    throw nb::type_error("a list holds something else than whole numbers");
  }
  return items;
}

// Throws std::invalid_argument for what int8 kernels cannot compute with; 0 bits stand for the default.
void check_int8(const Values& values, int64_t columns, int activation_bits);
// Throws std::invalid_argument unless it is "panel" or "quad".
DwordForm find_int8_form(const std::string& layout);

}  // namespace gossamer::bind
