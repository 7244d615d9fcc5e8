// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/bf16_pairs_layout.hpp"
#include "gossamer/cpu.hpp"

namespace gossamer::bind {
namespace {

DwordForm find_form(const std::string& form) {
  if (form == "panel") return DwordForm::panel;
  if (form == "pair") return DwordForm::neighbours;
  throw std::invalid_argument("form must be 'panel' or 'pair', got '" + form + "'");
}

}  // namespace

void bind_bf16_pairs(nb::module_& m) {
  m.def(
      "pack_bf16",
      [](const Values& values, const Bits& bits, int64_t rows, int64_t columns, const std::string& kernels,
         const std::string& form) -> std::unique_ptr<PackedWeight> {
        return std::make_unique<Bf16Weight>(kept_weight(values, bits, rows, columns), find_form(form),
                                            bf16_kernels(find_isa(kernels)));
      },
      nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"),
      nb::arg("kernels"), nb::arg("form"));
}

}  // namespace gossamer::bind
