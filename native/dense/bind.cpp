// SPDX-License-Identifier: Apache-2.0
// Activations and sums cross as addresses, as in packed_weight.cpp.
#include <omp.h>

#include <stdexcept>

#include "../bind/common.hpp"
#include "../bind/families.hpp"
#include "dense.hpp"

namespace gossamer::bind {
namespace {

void to_bytes(uintptr_t x, int64_t tokens, int64_t columns, int64_t stride, int bits, uintptr_t bytes,
              uintptr_t numbers, uintptr_t scales, const std::string& kernels) {
  if (tokens < 0 || columns < 0) throw std::invalid_argument("tokens and columns must not be negative");
  if (bits != 7 && bits != 8) throw std::invalid_argument("bits must be 7 or 8, got " + std::to_string(bits));
  if (stride < columns) throw std::invalid_argument("a row stride is shorter than its row");
  if (tokens == 0) return;
  if (!scales || (columns > 0 && (!x || (!bytes && !numbers))))
    throw std::invalid_argument("x, scales and one of bytes and numbers must not be null");
  const Isa isa = find_isa(kernels);
  const TokensToBytes call = {reinterpret_cast<const float*>(x), tokens, columns, stride, bits,
                              reinterpret_cast<uint8_t*>(bytes), reinterpret_cast<float*>(numbers),
                              reinterpret_cast<float*>(scales)};
  nb::gil_scoped_release release;
  tokens_to_bytes(call, isa, omp_get_max_threads());
}

void finish(uintptr_t y, int64_t tokens, int64_t rows, uintptr_t scales, uintptr_t bias, const std::string& kernels) {
  if (tokens < 0 || rows < 0) throw std::invalid_argument("tokens and rows must not be negative");
  if (tokens == 0 || rows == 0) return;
  if (!y) throw std::invalid_argument("y must not be null");
  const Isa isa = find_isa(kernels);
  const FinishTokens call = {reinterpret_cast<float*>(y), tokens, rows, reinterpret_cast<const float*>(scales),
                             reinterpret_cast<const float*>(bias)};
  nb::gil_scoped_release release;
  finish_tokens(call, isa, omp_get_max_threads());
}

}  // namespace

void bind_dense(nb::module_& m) {
  m.def("tokens_to_bytes", &to_bytes);
  m.def("finish_tokens", &finish);
}

}  // namespace gossamer::bind
