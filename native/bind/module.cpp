// SPDX-License-Identifier: Apache-2.0
// The only door from Python to the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <stdexcept>

#include "families.hpp"
#include "gossamer/ceilings.hpp"
#include "gossamer/cpu.hpp"

namespace nb = nanobind;
using namespace gossamer;

namespace {

// A failed allocation is gossamer's ResourceError, whatever was called. The class is found beforehand: there may
// be no memory for an import when it is needed.
void translate_bad_alloc() {
  PyObject* const error = nb::module_::import_("gossamer.errors").attr("ResourceError").inc_ref().ptr();
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* error) {
        try {
          std::rethrow_exception(thrown);
        } catch (const std::bad_alloc&) {
          PyErr_SetString(static_cast<PyObject*>(error),
                          "native kernel: out of memory, an allocation failed. Run fewer tokens or images at a time,"
                          " or free memory.");
        }
      },
      error);
}

}  // namespace

NB_MODULE(_native, m) {
  translate_bad_alloc();
  bind::bind_absorb(m);
  bind::bind_adamw(m);
  bind::bind_attention(m);
  bind::bind_bf16_pairs(m);
  bind::bind_bitmask(m);
  bind::bind_encoder(m);
  bind::bind_few(m);
  bind::bind_conv(m);
  bind::bind_conv_net(m);
  bind::bind_graph(m);
  bind::bind_packed_weight(m);
  bind::bind_int8(m);
  bind::bind_io_order(m);
  bind::bind_neurons(m);
  bind::bind_few_int(m);
  bind::bind_decoder(m);
  bind::bind_nmg(m);
  bind::bind_stored(m);
  bind::bind_strip(m);
  bind::bind_table(m);
  bind::bind_dense(m);
  bind::bind_tall(m);
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
