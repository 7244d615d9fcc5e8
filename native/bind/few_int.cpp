// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/few_int_layout.hpp"
#include "gossamer/stored_weight.hpp"

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

// A sum of zeros: what is not finite becomes NaN. std::isfinite is not made into vectors.
bool all_finite(const Values& values) {
  float sum[8] = {};
  const int64_t count = static_cast<int64_t>(values.size());
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; ++j) sum[j] += values.data()[i + j] * 0.0f;
  for (; i < count; ++i) sum[0] += values.data()[i] * 0.0f;
  return std::all_of(sum, sum + 8, [](float zero) { return zero == 0.0f; });
}

}  // namespace

void bind_few_int(nb::module_& m) {
  m.def(
      "pack_few_int",
      [](const Values& values, const std::optional<Bits>& bits, int64_t rows, int64_t columns, const std::string& kernels,
         const std::string& dtype, int64_t scale_group) {
        if (dtype != "int8" && dtype != "int4")
          throw std::invalid_argument("dtype must be int8 or int4, got '" + dtype + "'");
        if (scale_group < 1) throw std::invalid_argument("scale_group must be positive, got " + std::to_string(scale_group));
        if (!all_finite(values)) throw std::invalid_argument("values must be finite to be quantised");
        if (!bits && (rows < 0 || columns < 0 || rows > kMaxStored || columns > kMaxStored ||
                      static_cast<int64_t>(values.shape(0)) != rows * columns))
          throw std::invalid_argument("without mask_bits there must be rows x columns values");
        const KeptWeight weight = bits ? kept_weight(values, *bits, rows, columns)
                                       : KeptWeight{values.data(), nullptr, rows, columns};
        return pack_few_int_weight(weight, dtype == "int4", scale_group, few_int_kernel(find_isa(kernels)),
                                   omp_get_max_threads());
      },
      nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert().none(), nb::arg("rows"), nb::arg("columns"),
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
