// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common.hpp"
#include "dense/gemm.hpp"
#include "families.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/int8_window.hpp"

namespace gossamer::bind {
namespace {

std::unique_ptr<Int8Weight> pack(const Values& values, const Bits& bits, int64_t rows, int64_t columns,
                                 const std::string& kernels, const std::string& layout, int activation_bits,
                                 float activation_scale) {
  const Int8Options options = {find_int8_form(layout), activation_bits, activation_scale};
  // The reciprocal has to be a number, too.
  if (activation_scale != 0.0f && !(activation_scale >= 0x1p-120f && activation_scale <= 0x1p120f))
    throw std::invalid_argument("activation_scale must be in [2^-120, 2^120], or 0 for one per token");
  check_int8(values, columns, activation_bits);
  const KeptWeight weight = kept_weight(values, bits, rows, columns);
  return std::make_unique<Int8Weight>(weight, options, int8_kernels(find_isa(kernels)));
}

}  // namespace

DwordForm find_int8_form(const std::string& layout) {
  if (layout == "panel") return DwordForm::panel;
  if (layout == "quad") return DwordForm::neighbours;
  throw std::invalid_argument("layout must be 'panel' or 'quad', got '" + layout + "'");
}

void check_int8(const Values& values, int64_t columns, int activation_bits) {
  if (activation_bits != 0 && activation_bits != 7 && activation_bits != 8)
    throw std::invalid_argument("activation_bits must be 7, 8 or 0 for the default, got " +
                                std::to_string(activation_bits));
  if (columns > kMaxInt8Columns)
    throw std::invalid_argument("int8 sums are 32 bits wide: columns must be at most 131072, got " +
                                std::to_string(columns));
  if (!std::all_of(values.data(), values.data() + values.size(), [](float v) { return std::isfinite(v); }))
    throw std::invalid_argument("values must be finite to be quantised");
}

void bind_int8(nb::module_& m) {
  nb::class_<Int8Weight, PackedWeight>(m, "Int8Weight")
      .def_prop_ro("activation_bits", [](const Int8Weight& weight) { return weight.layout.activation_bits; })
      .def_prop_ro("activation_scale", [](const Int8Weight& weight) { return weight.layout.activation_scale; });
  m.def("pack_int8", pack, nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"),
        nb::arg("columns"), nb::arg("kernels"), nb::arg("layout"), nb::arg("activation_bits") = 0,
        nb::arg("activation_scale") = 0.0f);
  const auto def = [&](const char* name, auto packer) {
    m.def(
        name,
        [packer](const Values& values, const Bits& bits, int64_t rows, int64_t columns, const std::string& kernels) {
          check_int8(values, columns, 0);
          return packer(kept_weight(values, bits, rows, columns), find_isa(kernels));
        },
        nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"),
        nb::arg("kernels"));
  };
  def("pack_dense_int8", pack_gemm_weight);
  def("pack_int8_windows", pack_window_weight);
}

}  // namespace gossamer::bind
