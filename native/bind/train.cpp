// SPDX-License-Identifier: Apache-2.0
// The products of a training step. Floats cross as addresses, as in packed_weight.cpp.
#include "gossamer/train.hpp"

#include <omp.h>

#include <stdexcept>

#include "common.hpp"
#include "families.hpp"

namespace gossamer::bind {
namespace {

// Rows of floats at an address: [tokens][width], `stride` apart.
void check_rows(uintptr_t address, int64_t tokens, int64_t width, int64_t stride, const char* name) {
  if (tokens > 0 && width > 0 && !address) throw std::invalid_argument(std::string(name) + " must not be null");
  if (stride < width) throw std::invalid_argument(std::string(name) + ": the row stride is shorter than a row");
}

KeptWeight checked_weight(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns, int64_t tokens) {
  const int64_t rows = static_cast<int64_t>(bits.shape(0));
  check_mask(bits, rows, columns, num_values);
  if (num_values > 0 && !values) throw std::invalid_argument("values must not be null");
  if (tokens < 0) throw std::invalid_argument("tokens must not be negative");
  return {reinterpret_cast<const float*>(values), bits.data(), rows, columns};
}

enum class Product { linear, grad_input };

// Forward and its transpose take the same arguments; x and y swap their widths.
template <Product product>
void multiply(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns, uintptr_t x,
              int64_t tokens, int64_t x_stride, uintptr_t y, int64_t y_stride, uintptr_t bias,
              const std::string& kernels) {
  const KeptWeight weight = checked_weight(values, num_values, bits, columns, tokens);
  constexpr bool turned = product == Product::grad_input;
  const int64_t inputs = turned ? weight.rows : columns, outputs = turned ? columns : weight.rows;
  check_rows(x, tokens, inputs, x_stride, "x");
  check_rows(y, tokens, outputs, y_stride, "y");
  const Isa isa = find_isa(kernels);
  if (tokens == 0 || outputs == 0) return;
  const LinearCall call = {reinterpret_cast<const float*>(x), tokens,   x_stride,
                           reinterpret_cast<float*>(y),       y_stride, reinterpret_cast<const float*>(bias),
                           Activation::none};
  nb::gil_scoped_release release;
  (turned ? train_grad_input : train_linear)(weight, call, isa, omp_get_max_threads());
}

void grad_values(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns, uintptr_t grad,
                 int64_t grad_stride, uintptr_t x, int64_t x_stride, int64_t tokens, const std::string& kernels) {
  const KeptWeight weight = checked_weight(values, num_values, bits, columns, tokens);
  check_rows(grad, tokens, weight.rows, grad_stride, "grad");
  check_rows(x, tokens, columns, x_stride, "x");
  const Isa isa = find_isa(kernels);
  const SampledCall call = {reinterpret_cast<const float*>(x), x_stride, reinterpret_cast<const float*>(grad),
                            grad_stride, tokens};
  nb::gil_scoped_release release;
  train_grad_values(weight, call, reinterpret_cast<float*>(values), isa, omp_get_max_threads());
}

}  // namespace

void bind_train(nb::module_& m) {
  m.def("train_linear", &multiply<Product::linear>, nb::arg("values"), nb::arg("num_values"),
        nb::arg("mask_bits").noconvert(), nb::arg("columns"), nb::arg("x"), nb::arg("tokens"),
        nb::arg("x_stride"), nb::arg("y"), nb::arg("y_stride"), nb::arg("bias"), nb::arg("kernels"));
  m.def("train_grad_input", &multiply<Product::grad_input>, nb::arg("values"), nb::arg("num_values"),
        nb::arg("mask_bits").noconvert(), nb::arg("columns"), nb::arg("x"), nb::arg("tokens"),
        nb::arg("x_stride"), nb::arg("y"), nb::arg("y_stride"), nb::arg("bias"), nb::arg("kernels"));
  m.def("train_grad_values", grad_values, nb::arg("values"), nb::arg("num_values"),
        nb::arg("mask_bits").noconvert(), nb::arg("columns"), nb::arg("grad"), nb::arg("grad_stride"),
        nb::arg("x"), nb::arg("x_stride"), nb::arg("tokens"), nb::arg("kernels"));
}

}  // namespace gossamer::bind
