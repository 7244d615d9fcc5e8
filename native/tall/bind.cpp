// SPDX-License-Identifier: Apache-2.0
// Tall products. Arrays cross as addresses, as in train.cpp.
#include <omp.h>

#include <stdexcept>

#include "../bind/common.hpp"
#include "../bind/families.hpp"
#include "tall.hpp"

namespace gossamer::bind {
namespace {

const float* floats(uintptr_t p) { return reinterpret_cast<const float*>(p); }
float* to_floats(uintptr_t p) { return reinterpret_cast<float*>(p); }

void check(std::initializer_list<int64_t> sizes, std::initializer_list<std::pair<uintptr_t, int64_t>> arrays) {
  for (const int64_t size : sizes)
    if (size < 0) throw std::invalid_argument("a size is negative");
  for (const auto& [address, elements] : arrays)
    if (elements && !address) throw std::invalid_argument("an array is missing");
}

template <class Run>
void run_native(const std::string& kernels, Run run) {
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  run(isa, omp_get_max_threads());
}

void product(uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t y, int64_t rows, int64_t inner, int64_t width,
             bool turned, const std::string& kernels) {
  check({rows, inner, width}, {{x, rows * inner}, {w, inner * width}, {y, rows * width}});
  run_native(kernels, [&](Isa isa, int threads) {
    tall_product(floats(x), floats(w), floats(bias), to_floats(y), rows, inner, width, turned, isa, threads);
  });
}

void outer(uintptr_t g, uintptr_t x, uintptr_t c, uintptr_t sums, int64_t rows, int64_t height, int64_t width,
           const std::string& kernels) {
  check({rows, height, width}, {{g, rows * height}, {x, rows * width}, {c, height * width}});
  const TallOuter call = {floats(g), floats(x), to_floats(c), to_floats(sums), rows, height, width};
  run_native(kernels, [&](Isa isa, int threads) { tall_outer(call, isa, threads); });
}

}  // namespace

void bind_tall(nb::module_& m) {
  m.def("tall_product", &product);
  m.def("tall_outer", &outer);
}

}  // namespace gossamer::bind
