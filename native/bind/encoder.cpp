// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <optional>
#include <stdexcept>

#include <nanobind/stl/optional.h>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/encoder_model.hpp"

namespace gossamer::bind {
namespace {

std::unique_ptr<PanelLinear> pack(const Values& values, const Bits& bits, int64_t rows, int64_t columns,
                                  const std::optional<Values>& bias, const std::string& kernels,
                                  const std::string& int8_layout) {
  if (bias && static_cast<int64_t>(bias->size()) != rows) throw std::invalid_argument("bias must have one value per row");
  const bool is_int8 = !int8_layout.empty();
  const float* const biases = bias ? bias->data() : nullptr;
  if (is_int8) check_int8(values, columns, 0);
  if (int8_layout == "dense") return pack_dense_linear(kept_weight(values, bits, rows, columns), biases, find_isa(kernels));
  if (int8_layout == "window") return pack_window_linear(kept_weight(values, bits, rows, columns), biases, find_isa(kernels));
  const Int8Options options = {is_int8 ? find_int8_form(int8_layout) : DwordForm::panel, 0, 0.0f};
  return pack_panel_linear(kept_weight(values, bits, rows, columns), biases, find_isa(kernels),
                           is_int8 ? &options : nullptr);
}

std::vector<float> floats_of(const Values& values) { return {values.data(), values.data() + values.size()}; }

NormWeights norm_of(const Values& gain, const Values& shift, float epsilon) {
  return {floats_of(gain), floats_of(shift), epsilon};
}

using Linear = std::shared_ptr<PanelLinear>;

// Shares what a Python object holds. nanobind's own way to shared pointers is noexcept, see items_of.
Linear share(nb::object object) {
  auto* const linear = nb::cast<PanelLinear*>(object);
  if (!linear) throw nb::type_error("a layer must be a PanelLinear");
  return Linear(linear, [held = std::move(object)](PanelLinear*) mutable {
    if (!nb::is_alive()) return void(held.release());
    const nb::gil_scoped_acquire gil;
    held.reset();
  });
}

void add_layer(EncoderModel& model, const nb::object& qkv, const nb::object& out, const nb::object& up,
               const nb::object& down, const Values& attention_gain, const Values& attention_shift,
               const Values& output_gain, const Values& output_shift, float epsilon, int64_t heads, int64_t head_width,
               float scale, int activation, bool norm_first, bool is_gated, const Values& frequencies,
               float rotation_factor, const Values& bias, int64_t reach, int64_t window) {
  if (activation < 0 || activation >= kNumActivations) throw std::invalid_argument("unknown activation code");
  model.add({share(qkv), share(out), share(up), share(down),
             norm_of(attention_gain, attention_shift, epsilon), norm_of(output_gain, output_shift, epsilon), heads,
             head_width, scale, static_cast<Activation>(activation), norm_first, is_gated,
             {floats_of(frequencies), rotation_factor}, {floats_of(bias), reach, window}});
}

void run(const EncoderModel& model, uintptr_t x, int64_t x_stride, uintptr_t y, int64_t y_stride,
         const nb::sequence& length_list) {
  const auto lengths = items_of<int64_t>(length_list);
  for (const int64_t length : lengths)
    if (length < 0) throw std::invalid_argument("lengths must not be negative");
  if (!x || !y) throw std::invalid_argument("x and y must not be null");
  if (x_stride < model.features() || y_stride < model.features())
    throw std::invalid_argument("a row stride is shorter than its row");
  nb::gil_scoped_release release;
  model.run(reinterpret_cast<const float*>(x), x_stride, reinterpret_cast<float*>(y), y_stride, lengths,
            omp_get_max_threads());
}

}  // namespace

void bind_encoder(nb::module_& m) {
  nb::class_<PanelLinear>(m, "PanelLinear")
      .def_ro("rows", &PanelLinear::rows)
      .def_ro("columns", &PanelLinear::columns)
      .def_ro("kept", &PanelLinear::kept)
      .def_prop_ro("nbytes", &PanelLinear::bytes);
  m.def("pack_panel_linear", pack, nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"),
        nb::arg("columns"), nb::arg("bias").none().noconvert(), nb::arg("kernels"),
        nb::arg("int8_layout") = "");
  nb::class_<EncoderModel>(m, "EncoderModel")
      .def("__init__",
           [](EncoderModel* self, const std::string& kernels, int64_t features) {
             if (features < 1) throw std::invalid_argument("features must be positive");
             new (self) EncoderModel(find_isa(kernels), features);
           },
           nb::arg("kernels"), nb::arg("features"))
      .def("add_layer", add_layer, nb::arg("qkv"), nb::arg("out"), nb::arg("up"), nb::arg("down"),
           nb::arg("attention_gain").noconvert(), nb::arg("attention_shift").noconvert(),
           nb::arg("output_gain").noconvert(), nb::arg("output_shift").noconvert(), nb::arg("epsilon"),
           nb::arg("heads"), nb::arg("head_width"), nb::arg("scale"), nb::arg("activation"), nb::arg("norm_first"),
           nb::arg("is_gated"), nb::arg("frequencies").noconvert(), nb::arg("rotation_factor"),
           nb::arg("bias").noconvert(), nb::arg("reach"), nb::arg("window"))
      .def("run", run, nb::arg("x"), nb::arg("x_stride"), nb::arg("y"), nb::arg("y_stride"), nb::arg("lengths"))
      .def("run_products",
           [](const EncoderModel& model, int64_t tokens) {
             if (tokens < 0) throw std::invalid_argument("tokens must not be negative");
             nb::gil_scoped_release release;
             model.run_products(tokens);
           },
           nb::arg("tokens"))
      .def_prop_ro("features", &EncoderModel::features)
      .def_prop_ro("num_layers", &EncoderModel::num_layers);
}

}  // namespace gossamer::bind
