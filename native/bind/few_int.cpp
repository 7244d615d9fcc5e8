// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/few_int_layout.hpp"

namespace gossamer::bind {

void bind_few_int(nb::module_& m) {
  m.def(
      "pack_few_int",
      [](const Values& values, const Bits& bits, int64_t rows, int64_t columns, const std::string& kernels,
         const std::string& dtype, int64_t scale_group) {
        if (dtype != "int8" && dtype != "int4")
          throw std::invalid_argument("dtype must be int8 or int4, got '" + dtype + "'");
        if (scale_group < 1) throw std::invalid_argument("scale_group must be positive, got " + std::to_string(scale_group));
        if (!std::all_of(values.data(), values.data() + values.size(), [](float v) { return std::isfinite(v); }))
          throw std::invalid_argument("values must be finite to be quantised");
        const KeptWeight weight = kept_weight(values, bits, rows, columns);
        return pack_few_int_weight(weight, dtype == "int4", scale_group, few_int_kernel(find_isa(kernels)));
      },
      nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"),
      nb::arg("kernels"), nb::arg("dtype"), nb::arg("scale_group"));
}

}  // namespace gossamer::bind
