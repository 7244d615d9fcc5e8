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

#include "gossamer/bitmask.hpp"
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
  if (columns % 8)
    for (int64_t r = 0; r < rows; ++r)
      if (bits.data()[(r + 1) * width - 1] >> (columns % 8))
        throw std::invalid_argument("mask_bits has bits beyond the last column");
  const int64_t kept = count_mask(bits.data(), rows, columns);
  if (kept != num_values)
    throw std::invalid_argument("mask_bits keeps " + std::to_string(kept) + " weights but there are " +
                                std::to_string(num_values) + " values");
}

struct Panel {
  PanelLayout layout;

  Panel(const Values& values, const Bits& bits, int64_t rows, int64_t columns,
        const std::string& kernels) {
    check_mask(bits, rows, columns, static_cast<int64_t>(values.shape(0)));
    layout = pack_panel(values.data(), bits.data(), rows, columns, find_kernels(kernels).shapes);
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

enum class Move { expand, gather };

// Both directions take the same arguments: addresses of the values and of the dense matrix.
template <Move move>
void move_values(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns, int itemsize,
                 uintptr_t dense) {
  const int64_t rows = static_cast<int64_t>(bits.shape(0));
  check_mask(bits, rows, columns, num_values);
  if (itemsize != 2 && itemsize != 4 && itemsize != 8)
    throw std::invalid_argument("itemsize must be 2, 4 or 8");
  if ((num_values > 0 && !values) || (rows > 0 && columns > 0 && !dense))
    throw std::invalid_argument("values and dense must not be null");
  nb::gil_scoped_release release;
  const int threads = omp_get_max_threads();
  if constexpr (move == Move::expand)
    expand_mask(reinterpret_cast<void*>(values), bits.data(), rows, columns, itemsize,
                reinterpret_cast<void*>(dense), threads);
  else
    gather_mask(reinterpret_cast<void*>(dense), bits.data(), rows, columns, itemsize,
                reinterpret_cast<void*>(values), threads);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::class_<Panel>(m, "Panel")
      .def(nb::init<const Values&, const Bits&, int64_t, int64_t, const std::string&>(), nb::arg("values").noconvert(),
           nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"),
           nb::arg("kernels"))
      .def("unpack", &Panel::unpack, nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert())
      .def("run", &Panel::run, nb::arg("x"), nb::arg("tokens"), nb::arg("x_stride"), nb::arg("y"),
           nb::arg("y_stride"), nb::arg("bias"), nb::arg("activation"), nb::arg("kernels"))
      .def_prop_ro("rows", [](const Panel& p) { return p.layout.rows; })
      .def_prop_ro("columns", [](const Panel& p) { return p.layout.columns; })
      .def_prop_ro("kept", [](const Panel& p) { return p.layout.kept; })
      .def_prop_ro("nbytes", [](const Panel& p) { return p.layout.bytes(); });
  m.def("expand", &move_values<Move::expand>, nb::arg("values"), nb::arg("num_values"),
        nb::arg("mask_bits").noconvert(), nb::arg("columns"), nb::arg("itemsize"), nb::arg("dense"));
  m.def("gather", &move_values<Move::gather>, nb::arg("values"), nb::arg("num_values"),
        nb::arg("mask_bits").noconvert(), nb::arg("columns"), nb::arg("itemsize"), nb::arg("dense"));
  m.def("available_kernels", [] {
    std::vector<std::string> names;
    for (const KernelSet* set : available_kernels()) names.emplace_back(set->name);
    return names;
  });
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
