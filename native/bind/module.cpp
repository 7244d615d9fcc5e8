// SPDX-License-Identifier: Apache-2.0
// The only door from Python to the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "families.hpp"
#include "gossamer/ceilings.hpp"
#include "gossamer/cpu.hpp"

namespace nb = nanobind;
using namespace gossamer;

NB_MODULE(_native, m) {
  bind::bind_absorb(m);
  bind::bind_adamw(m);
  bind::bind_bf16_pairs(m);
  bind::bind_bitmask(m);
  bind::bind_encoder(m);
  bind::bind_few(m);
  bind::bind_conv(m);
  bind::bind_conv_net(m);
  bind::bind_packed_weight(m);
  bind::bind_int8(m);
  bind::bind_io_order(m);
  bind::bind_neurons(m);
  bind::bind_few_int(m);
  bind::bind_decoder(m);
  bind::bind_nmg(m);
  bind::bind_strip(m);
  bind::bind_train(m);
  m.def("available_kernels", [] {
    std::vector<std::string> names;
    for (const Isa isa : available_isas()) names.emplace_back(isa_name(isa));
    return names;
  });
  m.def("available_extensions", available_extensions);
  m.def("ceiling_mixes", ceiling_mixes);
  m.def(
      "run_ceiling",
      [](const std::string& kernels, const std::string& mix, int64_t repeats) {
        if (repeats < 0) throw std::invalid_argument("repeats must not be negative");
        return run_ceiling(find_isa(kernels), mix, repeats);
      },
      nb::arg("kernels"), nb::arg("mix"), nb::arg("repeats"));
}
