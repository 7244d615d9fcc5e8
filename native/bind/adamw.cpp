// SPDX-License-Identifier: Apache-2.0
// AdamW over vectors that cross as addresses, as in train.cpp.
#include "gossamer/adamw.hpp"

#include <omp.h>

#include <cmath>
#include <stdexcept>

#include "common.hpp"
#include "families.hpp"

namespace gossamer::bind {
namespace {

void step(uintptr_t weight, uintptr_t low, uintptr_t grad, uintptr_t mean, uintptr_t square, int64_t count,
          double lr, double beta1, double beta2, double eps, double weight_decay, int64_t number,
          const std::string& kernels) {
  if (count < 0) throw std::invalid_argument("count must not be negative");
  if (number < 1) throw std::invalid_argument("steps are counted from 1");
  if (count > 0 && (!weight || !grad || !mean || !square))
    throw std::invalid_argument("weight, grad, mean and square must not be null");
  const Isa isa = find_isa(kernels);
  // In double, as Python computes them.
  const double steps = static_cast<double>(number);
  const AdamwCall call = {count,
                          reinterpret_cast<void*>(weight),
                          reinterpret_cast<int16_t*>(low),
                          reinterpret_cast<const void*>(grad),
                          reinterpret_cast<float*>(mean),
                          reinterpret_cast<float*>(square),
                          static_cast<float>(1.0 - lr * weight_decay),
                          static_cast<float>(1.0 - beta1),
                          static_cast<float>(beta2),
                          static_cast<float>(1.0 - beta2),
                          static_cast<float>(std::pow(1.0 - std::pow(beta2, steps), 0.5)),
                          static_cast<float>(eps),
                          static_cast<float>(-(lr / (1.0 - std::pow(beta1, steps))))};
  nb::gil_scoped_release release;
  adamw_step(call, isa, omp_get_max_threads());
}

}  // namespace

void bind_adamw(nb::module_& m) {
  m.def("adamw_step", &step, nb::arg("weight"), nb::arg("low"), nb::arg("grad"), nb::arg("mean"), nb::arg("square"),
        nb::arg("count"), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"), nb::arg("weight_decay"),
        nb::arg("number"), nb::arg("kernels"));
}

}  // namespace gossamer::bind
