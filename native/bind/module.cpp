// SPDX-License-Identifier: Apache-2.0
// The only door from Python to the kernels. Everything that comes through it is validated here;
// kernels assume valid arguments. Activations cross as addresses: exchanging tensors by DLPack
// costs 8-12 us a call, more than a small layer.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "gossamer/cpu.hpp"
#include "gossamer/panel_layout.hpp"

namespace nb = nanobind;
using namespace gossamer;

namespace {

using Values = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const KernelSet& find_kernels(const std::string& name) {
  std::string known;
  for (const KernelSet* set : available_kernels()) {
    if (name == set->name) return *set;
    known += std::string(known.empty() ? "" : ", ") + set->name;
  }
  throw std::invalid_argument("kernel set '" + name + "' cannot run on this CPU; available: " + known);
}

void check_mask(const Bits& bits, int64_t rows, int64_t columns, int64_t num_values) {
  if (rows < 0 || columns < 0 || rows > (int64_t{1} << 31) || columns > (int64_t{1} << 31))
    throw std::invalid_argument("rows and columns must be in [0, 2^31]");
  const int64_t width = (columns + 7) / 8;
  if (static_cast<int64_t>(bits.shape(0)) != rows || static_cast<int64_t>(bits.shape(1)) != width)
    throw std::invalid_argument("mask_bits must have shape [rows, ceil(columns / 8)]");
  int64_t kept = 0;
  const uint8_t spare = columns % 8 ? static_cast<uint8_t>(0xffu << (columns % 8)) : 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t b = 0; b < width; ++b) {
      const uint8_t byte = bits.data()[r * width + b];
      if (b + 1 == width && (byte & spare))
        throw std::invalid_argument("mask_bits has bits beyond the last column");
      kept += __builtin_popcount(byte);
    }
  if (kept != num_values)
    throw std::invalid_argument("mask_bits keeps " + std::to_string(kept) + " weights but there are " +
                                std::to_string(num_values) + " values");
}

struct Panel {
  PanelLayout layout;

  Panel(const Values& values, const Bits& bits, int64_t rows, int64_t columns) {
    check_mask(bits, rows, columns, static_cast<int64_t>(values.shape(0)));
    layout = pack_panel(values.data(), bits.data(), rows, columns);
  }

  void unpack(const Values& values, const Bits& bits) const {
    if (static_cast<int64_t>(values.shape(0)) != layout.kept ||
        static_cast<int64_t>(bits.shape(0)) != layout.rows ||
        static_cast<int64_t>(bits.shape(1)) != (layout.columns + 7) / 8)
      throw std::invalid_argument("unpack: values or mask_bits have the wrong size");
    std::fill_n(bits.data(), bits.size(), uint8_t{0});
    unpack_panel(layout, values.data(), bits.data());
  }

  void run(uintptr_t x, int64_t tokens, int64_t x_stride, uintptr_t y, int64_t y_stride,
           uintptr_t bias, int activation, const std::string& kernels) const {
    if (tokens < 0) throw std::invalid_argument("tokens must not be negative");
    if (tokens == 0 || layout.rows == 0) return;
    if (!y || (!x && layout.columns)) throw std::invalid_argument("x and y must not be null");
    if (x_stride < layout.columns || y_stride < layout.rows)
      throw std::invalid_argument("a row stride is shorter than its row");
    if (activation < 0 || activation > 3) throw std::invalid_argument("unknown activation code");
    const KernelSet& set = find_kernels(kernels);
    const LinearCall call = {reinterpret_cast<const float*>(x), tokens,   x_stride,
                             reinterpret_cast<float*>(y),       y_stride, reinterpret_cast<const float*>(bias),
                             static_cast<Activation>(activation)};
    nb::gil_scoped_release release;
    run_panel(layout, call, set, omp_get_max_threads());
  }
};

}  // namespace

NB_MODULE(_native, m) {
  nb::class_<Panel>(m, "Panel")
      .def(nb::init<const Values&, const Bits&, int64_t, int64_t>(), nb::arg("values").noconvert(),
           nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"))
      .def("unpack", &Panel::unpack, nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert())
      .def("run", &Panel::run, nb::arg("x"), nb::arg("tokens"), nb::arg("x_stride"), nb::arg("y"),
           nb::arg("y_stride"), nb::arg("bias"), nb::arg("activation"), nb::arg("kernels"))
      .def_prop_ro("rows", [](const Panel& p) { return p.layout.rows; })
      .def_prop_ro("columns", [](const Panel& p) { return p.layout.columns; })
      .def_prop_ro("kept", [](const Panel& p) { return p.layout.kept; })
      .def_prop_ro("nbytes", [](const Panel& p) { return p.layout.bytes(); });
  m.def("available_kernels", [] {
    std::vector<std::string> names;
    for (const KernelSet* set : available_kernels()) names.emplace_back(set->name);
    return names;
  });
  m.def("max_threads", [] { return omp_get_max_threads(); });
  m.def(
      "run_ceiling",
      [](const std::string& kernels, const std::string& mix, int64_t repeats) {
        const Ceilings& ceilings = find_kernels(kernels).ceilings;
        if (mix != "fma" && mix != "panel") throw std::invalid_argument("mix must be 'fma' or 'panel'");
        if (repeats < 0) throw std::invalid_argument("repeats must not be negative");
        return mix == "fma" ? ceilings.fma(repeats) : ceilings.panel(repeats);
      },
      nb::arg("kernels"), nb::arg("mix"), nb::arg("repeats"));
}
