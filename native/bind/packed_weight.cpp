// SPDX-License-Identifier: Apache-2.0
// A packed weight as Python sees it. Activations cross as addresses: exchanging tensors by DLPack
// costs 8-12 us a call, more than a small layer.
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <algorithm>
#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/panel_layout.hpp"

namespace gossamer::bind {
namespace {

void run(const PackedWeight& weight, uintptr_t x, int64_t tokens, int64_t x_stride, uintptr_t y,
         int64_t y_stride, uintptr_t bias, int activation) {
  if (tokens < 0) throw std::invalid_argument("tokens must not be negative");
  if (tokens == 0 || weight.rows == 0) return;
  if (!y || (!x && weight.columns)) throw std::invalid_argument("x and y must not be null");
  if (x_stride < weight.columns || y_stride < weight.rows)
    throw std::invalid_argument("a row stride is shorter than its row");
  if (activation < 0 || activation >= kNumActivations) throw std::invalid_argument("unknown activation code");
  const LinearCall call = {reinterpret_cast<const float*>(x), tokens,   x_stride,
                           reinterpret_cast<float*>(y),       y_stride, reinterpret_cast<const float*>(bias),
                           static_cast<Activation>(activation)};
  nb::gil_scoped_release release;
  weight.run(call, omp_get_max_threads());
}

void unpack(const PackedWeight& weight, const Values& values, const Bits& bits) {
  if (!weight.is_lossless()) throw std::invalid_argument("unpack: this layout does not keep the values");
  if (static_cast<int64_t>(values.shape(0)) != weight.kept ||
      static_cast<int64_t>(bits.shape(0)) != weight.rows ||
      static_cast<int64_t>(bits.shape(1)) != (weight.columns + 7) / 8)
    throw std::invalid_argument("unpack: values or mask_bits have the wrong size");
  std::fill_n(bits.data(), bits.size(), uint8_t{0});
  weight.unpack(values.data(), bits.data());
}

}  // namespace

void bind_packed_weight(nb::module_& m) {
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def("run", run, nb::arg("x"), nb::arg("tokens"), nb::arg("x_stride"), nb::arg("y"),
           nb::arg("y_stride"), nb::arg("bias"), nb::arg("activation"))
      .def("unpack", unpack, nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert())
      .def_ro("rows", &PackedWeight::rows)
      .def_ro("columns", &PackedWeight::columns)
      .def_ro("kept", &PackedWeight::kept)
      .def_prop_ro("is_lossless", &PackedWeight::is_lossless)
      .def_prop_ro("nbytes", &PackedWeight::bytes);
  m.def(
      "pack_panel",
      [](const Values& values, const Bits& bits, int64_t rows, int64_t columns, const std::string& kernels,
         bool bf16) { return pack_panel_weight(kept_weight(values, bits, rows, columns), find_isa(kernels), bf16); },
      nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"),
      nb::arg("columns"), nb::arg("kernels"), nb::arg("bf16") = false);
  m.def(
      "pack_shared_panel",
      [](const Values& values, const Bits& bits, int64_t rows, int64_t columns, const std::string& kernels,
         int64_t tile_rows, int64_t used, int64_t group) {
        if (tile_rows < 1 || tile_rows > 65536) throw std::invalid_argument("tile_rows must be in [1, 65536]");
        if (used < 1 || used > group || group > 2048)
          throw std::invalid_argument("expected 1 <= used <= group <= 2048");
        return pack_shared_panel_weight(kept_weight(values, bits, rows, columns), find_isa(kernels),
                                        tile_rows, used, group);
      },
      nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"),
      nb::arg("columns"), nb::arg("kernels"), nb::arg("tile_rows"), nb::arg("used"), nb::arg("group"));
}

}  // namespace gossamer::bind
