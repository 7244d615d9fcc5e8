// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <omp.h>

#include <optional>
#include <stdexcept>
#include <tuple>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/conv_net_model.hpp"

namespace gossamer::bind {
namespace {

std::vector<NetPosition> positions_of(const nb::sequence& positions) {
  std::vector<NetPosition> found;
  for (const auto& [phase, rows, columns] : items_of<std::tuple<int64_t, int64_t, int64_t>>(positions))
    found.push_back({phase, rows, columns});
  return found;
}

void add_conv(ConvNet& net, int64_t from, int64_t to, const Values& values, const Bits& bits, int64_t rows,
              int64_t columns, const std::optional<Values>& bias, int64_t phases, const nb::sequence& positions, bool relu,
              int64_t added, int64_t added_first) {
  if (bias && static_cast<int64_t>(bias->size()) != rows) throw std::invalid_argument("bias must have one value per row");
  if (net.int8()) check_int8(values, columns, 0);
  net.add_conv({from, to, added, added_first, relu, phases, positions_of(positions)},
               kept_weight(values, bits, rows, columns), bias ? bias->data() : nullptr);
}

void run(const ConvNet& net, uintptr_t x, int64_t images, uintptr_t y) {
  if (images < 0) throw std::invalid_argument("images must not be negative");
  if (images && (!x || !y)) throw std::invalid_argument("x and y must not be null");
  nb::gil_scoped_release release;
  net.run(reinterpret_cast<const float*>(x), images, reinterpret_cast<float*>(y), omp_get_max_threads());
}

}  // namespace

void bind_conv_net(nb::module_& m) {
  nb::class_<ConvNet>(m, "ConvNet")
      .def("__init__",
           [](ConvNet* self, const std::string& kernels, bool int8) { new (self) ConvNet(find_isa(kernels), int8); },
           nb::arg("kernels"), nb::arg("int8"))
      .def("add_shape",
           [](ConvNet& net, int64_t height, int64_t width, int64_t pad) { return net.add_shape({height, width, pad}); },
           nb::arg("height"), nb::arg("width"), nb::arg("pad"))
      .def("add_value",
           [](ConvNet& net, int64_t shape, int64_t channels, float scale, int zero) {
             return net.add_value({shape, channels, scale, zero});
           },
           nb::arg("shape"), nb::arg("channels"), nb::arg("scale"), nb::arg("zero"))
      .def("add_conv", add_conv, nb::arg("source"), nb::arg("target"), nb::arg("values").noconvert(),
           nb::arg("mask_bits").noconvert(), nb::arg("rows"), nb::arg("columns"), nb::arg("bias").none().noconvert(),
           nb::arg("phases"), nb::arg("positions"), nb::arg("relu"), nb::arg("added"), nb::arg("added_first"))
      .def("add_phases",
           [](ConvNet& net, int64_t from, int64_t to, const nb::sequence& phases) {
             std::vector<NetPhase> found;
             for (const auto& [row, column] : items_of<std::tuple<int64_t, int64_t>>(phases)) found.push_back({row, column});
             net.add_phases(from, to, std::move(found));
           },
           nb::arg("source"), nb::arg("target"), nb::arg("phases"))
      .def("add_largest",
           [](ConvNet& net, int64_t from, int64_t to, int64_t phases, const nb::sequence& positions) {
             net.add_largest(from, to, phases, positions_of(positions));
           },
           nb::arg("source"), nb::arg("target"), nb::arg("phases"), nb::arg("positions"))
      .def("finish", &ConvNet::finish, nb::arg("result"), nb::arg("mean"))
      .def("run", run, nb::arg("x"), nb::arg("images"), nb::arg("y"))
      .def_prop_ro("activation_bits", &ConvNet::activation_bits)
      .def_prop_ro("input_size", &ConvNet::input_size)
      .def_prop_ro("result_size", &ConvNet::result_size)
      .def_prop_ro("nbytes", &ConvNet::bytes);
}

}  // namespace gossamer::bind
