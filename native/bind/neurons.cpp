// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <omp.h>

#include <optional>
#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/neuron_block.hpp"

namespace gossamer::bind {
namespace {

using Indices = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Seen = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_same(const char* name, const Matrix& matrix, const Matrix& gate) {
  if (matrix.shape(0) != gate.shape(0) || matrix.shape(1) != gate.shape(1))
    throw std::invalid_argument(std::string(name) + " must have the shape of gate");
}

void check_bias(const std::optional<Values>& bias, const Matrix& gate) {
  if (bias && bias->shape(0) != gate.shape(0)) throw std::invalid_argument("a bias must have one value per neuron");
}

void init(NeuronBlock* self, const Matrix& gate, const std::optional<Matrix>& up, const Matrix& down,
          const std::optional<Values>& gate_bias, const std::optional<Values>& up_bias, float shift, float threshold,
          int power, int rows, const std::string& kernels) {
  if (power != 1 && power != 2) throw std::invalid_argument("power must be 1 or 2");
  if (rows < 0 || rows > static_cast<int>(NeuronType::int8)) throw std::invalid_argument("there is no such type of rows");
  if (gate.shape(1) > 65536) throw std::invalid_argument("at most 65536 features");
  if (up) check_same("up", *up, gate);
  check_same("down", down, gate);
  check_bias(gate_bias, gate);
  check_bias(up_bias, gate);
  new (self) NeuronBlock({gate.data(), up ? up->data() : nullptr, down.data(), gate_bias ? gate_bias->data() : nullptr,
                          up_bias ? up_bias->data() : nullptr, static_cast<int64_t>(gate.shape(0)),
                          static_cast<int64_t>(gate.shape(1)), shift, threshold, power,
                          static_cast<NeuronType>(rows)},
                         find_isa(kernels));
}

int64_t run(const NeuronBlock& block, uintptr_t x, uintptr_t y, const std::optional<Seen>& seen) {
  if (block.features() && (!x || !y)) throw std::invalid_argument("x and y must not be null");
  if (seen && static_cast<int64_t>(seen->shape(0)) != block.neurons())
    throw std::invalid_argument("seen must have one entry per neuron");
  nb::gil_scoped_release release;
  return block.run(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), omp_get_max_threads(),
                   seen ? seen->data() : nullptr);
}

int64_t run_known(const NeuronBlock& block, uintptr_t x, const Indices& known, uintptr_t y) {
  if (block.features() && (!x || !y)) throw std::invalid_argument("x and y must not be null");
  for (size_t i = 0; i < known.shape(0); ++i)
    if (known(i) < 0 || known(i) >= block.neurons() || (i && known(i) <= known(i - 1)))
      throw std::invalid_argument("known neurons must ascend, in [0, " + std::to_string(block.neurons()) + ")");
  nb::gil_scoped_release release;
  return block.run_known(reinterpret_cast<const float*>(x), known.data(), static_cast<int64_t>(known.shape(0)),
                         reinterpret_cast<float*>(y), omp_get_max_threads());
}

}  // namespace

void bind_neurons(nb::module_& m) {
  nb::class_<NeuronBlock>(m, "NeuronBlock")
      .def("__init__", init, nb::arg("gate").noconvert(), nb::arg("up").none().noconvert(), nb::arg("down").noconvert(),
           nb::arg("gate_bias").none().noconvert(), nb::arg("up_bias").none().noconvert(), nb::arg("shift"),
           nb::arg("threshold"), nb::arg("power"), nb::arg("rows"), nb::arg("kernels"))
      .def("run", run, nb::arg("x"), nb::arg("y"), nb::arg("seen").none().noconvert() = nb::none())
      .def("run_known", run_known, nb::arg("x"), nb::arg("known").noconvert(), nb::arg("y"))
      .def_prop_ro("neurons", &NeuronBlock::neurons)
      .def_prop_ro("features", &NeuronBlock::features)
      .def_prop_ro("nbytes", &NeuronBlock::bytes);
}

}  // namespace gossamer::bind
