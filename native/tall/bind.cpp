// SPDX-License-Identifier: Apache-2.0
// Tall products. Arrays cross as addresses, as in train.cpp.
#include <omp.h>

#include <algorithm>
#include <stdexcept>

#include "../bind/common.hpp"
#include "../bind/families.hpp"
#include "gossamer/big_alloc.hpp"
#include "grouped.hpp"
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

using Starts = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// `weight` is an address of floats or, with `halves`, of bfloat16.
Grouped grouped_of(const Starts& starts, uintptr_t weight, bool halves, int64_t outputs, int64_t inner, int64_t tokens) {
  const auto experts = static_cast<int64_t>(starts.shape(0)) - 1;
  check({experts, outputs, inner, tokens}, {{weight, experts * outputs * inner}});
  const int64_t* const at = starts.data();
  if (at[0] != 0 || at[experts] != tokens || !std::is_sorted(at, at + experts + 1))
    throw std::invalid_argument("starts of experts must rise from 0 to the number of tokens");
  return {at, experts, outputs, inner, halves ? nullptr : floats(weight),
          halves ? reinterpret_cast<const uint16_t*>(weight) : nullptr};
}

void product_of_experts(const Starts& starts, uintptr_t x, uintptr_t weight, bool halves, uintptr_t bias, uintptr_t y,
                        int64_t tokens, int64_t outputs, int64_t inner, const std::string& kernels) {
  const Grouped call = grouped_of(starts, weight, halves, outputs, inner, tokens);
  check({}, {{x, tokens * inner}, {y, tokens * outputs}});
  run_native(kernels, [&](Isa isa, int threads) {
    grouped_product(call, floats(x), floats(bias), to_floats(y), isa, threads);
  });
}

void input_gradient_of_experts(const Starts& starts, uintptr_t g, uintptr_t weight, bool halves, uintptr_t dx,
                               int64_t tokens, int64_t outputs, int64_t inner, const std::string& kernels) {
  const Grouped call = grouped_of(starts, weight, halves, outputs, inner, tokens);
  check({}, {{g, tokens * outputs}, {dx, tokens * inner}});
  run_native(kernels, [&](Isa isa, int threads) {
    grouped_input_gradient(call, floats(g), to_floats(dx), isa, threads);
  });
}

void weight_gradient_of_experts(const Starts& starts, uintptr_t g, uintptr_t x, uintptr_t dw, uintptr_t sums,
                                int64_t tokens, int64_t outputs, int64_t inner, const std::string& kernels) {
  Grouped call = grouped_of(starts, dw, false, outputs, inner, tokens);
  call.weight = nullptr;
  check({}, {{g, tokens * outputs}, {x, tokens * inner}});
  run_native(kernels, [&](Isa isa, int threads) {
    grouped_weight_gradient(call, floats(g), floats(x), to_floats(dw), to_floats(sums), isa, threads);
  });
}

// Zeros for the experts that have no tokens, each of `bytes` bytes from `memory` on.
void clear_idle_experts(const Starts& starts, uintptr_t memory, int64_t bytes) {
  const auto experts = static_cast<int64_t>(starts.shape(0)) - 1;
  check({experts, bytes}, {{memory, experts * bytes}});
  const int64_t* const at = starts.data();
  const nb::gil_scoped_release release;
  for (int64_t first = 0, last; first < experts; first = last + 1) {
    for (last = first; last < experts && at[last] == at[last + 1];) ++last;
    clear_pages(reinterpret_cast<char*>(memory) + first * bytes, static_cast<size_t>((last - first) * bytes));
  }
}

}  // namespace

void bind_tall(nb::module_& m) {
  m.def("tall_product", &product);
  m.def("tall_outer", &outer);
  m.def("product_of_experts", &product_of_experts, nb::arg("starts").noconvert(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("weight_gradient_of_experts", &weight_gradient_of_experts, nb::arg("starts").noconvert(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("clear_idle_experts", &clear_idle_experts, nb::arg("starts").noconvert(), nb::arg(), nb::arg());
  m.def("input_gradient_of_experts", &input_gradient_of_experts, nb::arg("starts").noconvert(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
}

}  // namespace gossamer::bind
