// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/few_layout.hpp"

namespace gossamer::bind {
namespace {

template <size_t N>
int index_of(const char* what, const char* const (&names)[N], const std::string& name) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<int>(i);
    known += std::string(i ? ", " : "") + names[i];
  }
  throw std::invalid_argument(std::string(what) + " must be one of " + known + "; got '" + name + "'");
}

constexpr const char* kForms[] = {"bitmask", "indexed", "nm"};
constexpr const char* kTypes[] = {"fp32", "bf16", "int8", "int4"};

}  // namespace

void bind_few(nb::module_& m) {
  m.def(
      "pack_few",
      [](const Values& values, const Bits& bits, int64_t rows, int64_t columns, const std::string& kernels,
         const std::string& form, const std::string& dtype, int64_t scale_group, int64_t slots, int64_t window) {
        const FewOptions options = {static_cast<FewForm>(index_of("form", kForms, form)),
                                    static_cast<ValueType>(index_of("dtype", kTypes, dtype)), scale_group, slots,
                                    window};
        const KeptWeight weight = kept_weight(values, bits, rows, columns);
        const std::string refusal = few_refusal(weight, static_cast<int64_t>(values.shape(0)), options);
        if (!refusal.empty()) throw std::invalid_argument("pack_few: " + refusal);
        return pack_few_weight(weight, options, find_isa(kernels));
      },
      nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"),
      nb::arg("kernels"), nb::arg("form"), nb::arg("dtype"), nb::arg("scale_group"), nb::arg("slots"),
      nb::arg("window"));
}

}  // namespace gossamer::bind
