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

AdamwMoment moment(uintptr_t entries, uintptr_t exponents, bool is_signed) {
  return {reinterpret_cast<void*>(entries), reinterpret_cast<int8_t*>(exponents), code_table(is_signed)};
}

void step(uintptr_t weight, uintptr_t low, int low_bits, uintptr_t grad, uintptr_t mean, uintptr_t mean_exponents,
          uintptr_t square, uintptr_t square_exponents, uintptr_t dither_pattern, uintptr_t dither_shifts,
          int64_t count, double lr, double beta1, double beta2, double eps, double weight_decay, int64_t number,
          const std::string& kernels) {
  if (count < 0) throw std::invalid_argument("count must not be negative");
  if (number < 1) throw std::invalid_argument("steps are counted from 1");
  if (low_bits != 0 && low_bits != 8 && low_bits != 16)
    throw std::invalid_argument("low_bits must be 0, 8 or 16");
  if (count > 0 && (!weight || !grad || !mean || !square || (low_bits && !low)))
    throw std::invalid_argument("weight, its low bits, grad, mean and square must not be null");
  if (!mean_exponents != !square_exponents)
    throw std::invalid_argument("both moments are codes with exponents, or none is");
  if (count > 0 && (low_bits == 8 || mean_exponents) && (!dither_pattern || !dither_shifts))
    throw std::invalid_argument("rounding to 8 bits needs a dither");
  const Isa isa = find_isa(kernels);
  // In double, as Python computes them.
  const double steps = static_cast<double>(number);
  const AdamwCall call = {count,
                          reinterpret_cast<void*>(weight),
                          low_bits ? reinterpret_cast<void*>(low) : nullptr,
                          low_bits,
                          reinterpret_cast<const void*>(grad),
                          moment(mean, mean_exponents, true),
                          moment(square, square_exponents, false),
                          reinterpret_cast<const float*>(dither_pattern),
                          reinterpret_cast<const float*>(dither_shifts),
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
  m.def("adamw_step", &step, nb::arg("weight"), nb::arg("low"), nb::arg("low_bits"), nb::arg("grad"), nb::arg("mean"),
        nb::arg("mean_exponents"), nb::arg("square"), nb::arg("square_exponents"), nb::arg("dither_pattern"),
        nb::arg("dither_shifts"), nb::arg("count"), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"),
        nb::arg("weight_decay"), nb::arg("number"), nb::arg("kernels"));
}

}  // namespace gossamer::bind
