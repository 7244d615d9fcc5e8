// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/few_int_layout.hpp"

namespace gossamer::bind {
namespace {

using Codes = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Halves = nb::ndarray<uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_halves(const Halves& halves, const OffsetWeight& weight, const char* name) {
  if (static_cast<int64_t>(halves.shape(0)) != weight.rows || static_cast<int64_t>(halves.shape(1)) != weight.groups())
    throw std::invalid_argument(std::string(name) + " must have shape [rows, ceil(columns / group)]");
  constexpr uint16_t kInfinity = 0x7c00;
  if (std::any_of(halves.data(), halves.data() + halves.size(), [](uint16_t h) { return (h & 0x7fff) >= kInfinity; }))
    throw std::invalid_argument(std::string(name) + " must be finite");
}

}  // namespace

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
  // Scales and offsets are the bits of fp16.
  m.def(
      "pack_few_int_offsets",
      [](const Codes& codes, const Halves& scales, const Halves& offsets, int64_t group, const std::string& kernels) {
        if (group != kIntHalf && (group < kIntStep || group % kIntStep))
          throw std::invalid_argument("group must be 32 or a multiple of 64, got " + std::to_string(group));
        const OffsetWeight weight = {codes.data(), scales.data(), offsets.data(), static_cast<int64_t>(codes.shape(0)),
                                     static_cast<int64_t>(codes.shape(1)), group};
        if (std::any_of(codes.data(), codes.data() + codes.size(), [](uint8_t code) { return code > 15; }))
          throw std::invalid_argument("codes must be at most 15");
        check_halves(scales, weight, "scales");
        check_halves(offsets, weight, "offsets");
        return pack_offset_weight(weight, few_int_kernel(find_isa(kernels)));
      },
      nb::arg("codes").noconvert(), nb::arg("scales").noconvert(), nb::arg("offsets").noconvert(), nb::arg("group"),
      nb::arg("kernels"));
}

}  // namespace gossamer::bind
