// SPDX-License-Identifier: Apache-2.0
// Gradients and sums of them cross as addresses, as in train.cpp.
#include "gossamer/absorb.hpp"

#include <omp.h>

#include <stdexcept>

#include "common.hpp"
#include "families.hpp"

namespace gossamer::bind {
namespace {

void run(uintptr_t gradient, uintptr_t held, int64_t num_blocks, int64_t block_size, uintptr_t fresh, uintptr_t scores,
         const std::string& kernels) {
  if (num_blocks < 0 || block_size < 1)
    throw std::invalid_argument("num_blocks must not be negative, block_size not below 1");
  if (num_blocks > 0 && (!gradient || !held || !fresh || !scores))
    throw std::invalid_argument("gradient, held, fresh and scores must not be null");
  const Isa isa = find_isa(kernels);
  const AbsorbCall call = {num_blocks,
                           block_size,
                           reinterpret_cast<const float*>(gradient),
                           reinterpret_cast<float*>(held),
                           reinterpret_cast<float*>(fresh),
                           reinterpret_cast<float*>(scores)};
  nb::gil_scoped_release release;
  absorb(call, isa, omp_get_max_threads());
}

}  // namespace

void bind_absorb(nb::module_& m) {
  m.def("absorb", &run, nb::arg("gradient"), nb::arg("held"), nb::arg("num_blocks"), nb::arg("block_size"),
        nb::arg("fresh"), nb::arg("scores"), nb::arg("kernels"));
  m.def("absorbed_together", [](int64_t block_size) { return absorbed_together(block_size); }, nb::arg("block_size"));
}

}  // namespace gossamer::bind
