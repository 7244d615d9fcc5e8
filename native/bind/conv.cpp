// SPDX-License-Identifier: Apache-2.0
// A packed convolution as Python sees it. Images cross as addresses, like the tokens of a linear.
#include <nanobind/stl/array.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <array>
#include <initializer_list>
#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/conv_train.hpp"
#include "gossamer/int8_conv_layout.hpp"

namespace gossamer::bind {
namespace {

using Pair = std::array<int64_t, 2>;  // height, width

constexpr int64_t kMaxExtent = int64_t{1} << 24;  // products of two stay far from overflow

void check_pair(const Pair& pair, int64_t least, const char* name) {
  if (pair[0] < least || pair[1] < least || pair[0] > kMaxExtent || pair[1] > kMaxExtent)
    throw std::invalid_argument(std::string(name) + " must be in [" + std::to_string(least) + ", 2^24]");
}

ConvGeometry checked_geometry(int64_t rows, int64_t columns, const Pair& kernel, const Pair& stride,
                              const Pair& padding, const Pair& dilation, int64_t groups, const Pair& image) {
  check_pair(kernel, 1, "kernel_size");
  check_pair(stride, 1, "stride");
  check_pair(padding, 0, "padding");
  check_pair(dilation, 1, "dilation");
  check_pair(image, 1, "image");
  if (groups < 1 || rows < groups || rows % groups)
    throw std::invalid_argument("rows must be a positive multiple of groups");
  if (columns < 1 || columns % (kernel[0] * kernel[1]))
    throw std::invalid_argument("columns must be a positive multiple of the kernel's size");
  const ConvGeometry geometry = {columns / (kernel[0] * kernel[1]),
                                 image[0],
                                 image[1],
                                 kernel[0],
                                 kernel[1],
                                 stride[0],
                                 stride[1],
                                 padding[0],
                                 padding[1],
                                 padding[0],
                                 padding[1],
                                 dilation[0],
                                 dilation[1],
                                 groups};
  if (image[0] + 2 * padding[0] <= dilation[0] * (kernel[0] - 1) ||
      image[1] + 2 * padding[1] <= dilation[1] * (kernel[1] - 1))
    throw std::invalid_argument("the image with its padding is smaller than the kernel");
  if ((image[0] + 2 * padding[0]) * (image[1] + 2 * padding[1]) > (int64_t{1} << 30))
    throw std::invalid_argument("the image with its padding has more than 2^30 pixels");
  if (!conv_kernel_fits(geometry)) throw std::invalid_argument("the kernel has more than 1024 positions");
  return geometry;
}

std::unique_ptr<PackedConv> pack(const Values& values, const Bits& bits, int64_t rows, int64_t columns,
                                 const Pair& kernel_size, const Pair& stride, const Pair& padding,
                                 const Pair& dilation, int64_t groups, const Pair& image,
                                 const std::string& kernels) {
  const KeptWeight weight = kept_weight(values, bits, rows, columns);
  const ConvGeometry geometry =
      checked_geometry(rows, columns, kernel_size, stride, padding, dilation, groups, image);
  return std::make_unique<PackedConv>(weight, geometry, conv_kernels(find_isa(kernels)));
}

std::unique_ptr<Int8Conv> pack_int8(const Values& values, const Bits& bits, int64_t rows, int64_t columns,
                                    const Pair& kernel_size, const Pair& stride, const Pair& padding,
                                    const Pair& dilation, int64_t groups, const Pair& image,
                                    const std::string& kernels, int activation_bits) {
  check_int8(values, columns, activation_bits);
  const KeptWeight weight = kept_weight(values, bits, rows, columns);
  const ConvGeometry geometry =
      checked_geometry(rows, columns, kernel_size, stride, padding, dilation, groups, image);
  return std::make_unique<Int8Conv>(weight, geometry, activation_bits, int8_conv_kernels(find_isa(kernels)));
}

template <class Conv>
void run(const Conv& conv, uintptr_t x, int64_t images, uintptr_t y, uintptr_t bias, int activation,
         uintptr_t added) {
  if (images < 0) throw std::invalid_argument("images must not be negative");
  if (images == 0) return;
  if (!x || !y) throw std::invalid_argument("x and y must not be null");
  if (activation < 0 || activation >= kNumActivations) throw std::invalid_argument("unknown activation code");
  nb::gil_scoped_release release;
  conv.run(reinterpret_cast<const float*>(x), images, reinterpret_cast<float*>(y),
           reinterpret_cast<const float*>(added), reinterpret_cast<const float*>(bias), static_cast<Activation>(activation), omp_get_max_threads());
}

// What the products of a training step share: a weight and images, as addresses.
struct TrainCall {
  KeptWeight weight;
  ConvGeometry geometry;
  Isa isa;
};

TrainCall checked_train_call(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns,
                             const Pair& kernel_size, const Pair& stride, const Pair& padding, const Pair& dilation,
                             int64_t groups, const Pair& image, int64_t images, const std::string& kernels) {
  const int64_t rows = static_cast<int64_t>(bits.shape(0));
  check_mask(bits, rows, columns, num_values);
  if (num_values > 0 && !values) throw std::invalid_argument("values must not be null");
  if (images < 0) throw std::invalid_argument("images must not be negative");
  return {{reinterpret_cast<const float*>(values), bits.data(), rows, columns},
          checked_geometry(rows, columns, kernel_size, stride, padding, dilation, groups, image),
          find_isa(kernels)};
}

void check_images(std::initializer_list<uintptr_t> addresses, int64_t images) {
  for (const uintptr_t address : addresses)
    if (images > 0 && !address) throw std::invalid_argument("images must not be null");
}

void forward(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns, const Pair& kernel_size,
             const Pair& stride, const Pair& padding, const Pair& dilation, int64_t groups, const Pair& image,
             int64_t images, const std::string& kernels, uintptr_t x, uintptr_t bias, uintptr_t y) {
  const TrainCall call = checked_train_call(values, num_values, bits, columns, kernel_size, stride, padding,
                                            dilation, groups, image, images, kernels);
  check_images({x, y}, images);
  nb::gil_scoped_release release;
  train_conv(call.weight, call.geometry, reinterpret_cast<const float*>(x), images,
             reinterpret_cast<const float*>(bias), reinterpret_cast<float*>(y), call.isa, omp_get_max_threads());
}

void grad_input(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns, const Pair& kernel_size,
                const Pair& stride, const Pair& padding, const Pair& dilation, int64_t groups, const Pair& image,
                int64_t images, const std::string& kernels, uintptr_t grad, uintptr_t dx) {
  const TrainCall call = checked_train_call(values, num_values, bits, columns, kernel_size, stride, padding,
                                            dilation, groups, image, images, kernels);
  check_images({grad, dx}, images);
  nb::gil_scoped_release release;
  train_conv_grad_input(call.weight, call.geometry, reinterpret_cast<const float*>(grad), images,
                        reinterpret_cast<float*>(dx), call.isa, omp_get_max_threads());
}

// `values` is written.
void grad_values(uintptr_t values, int64_t num_values, const Bits& bits, int64_t columns, const Pair& kernel_size,
                 const Pair& stride, const Pair& padding, const Pair& dilation, int64_t groups, const Pair& image,
                 int64_t images, const std::string& kernels, uintptr_t grad, uintptr_t x) {
  const TrainCall call = checked_train_call(values, num_values, bits, columns, kernel_size, stride, padding,
                                            dilation, groups, image, images, kernels);
  check_images({grad, x}, images);
  nb::gil_scoped_release release;
  train_conv_grad_values(call.weight, call.geometry, reinterpret_cast<const float*>(grad),
                         reinterpret_cast<const float*>(x), images, reinterpret_cast<float*>(values), call.isa,
                         omp_get_max_threads());
}

template <class Conv>
nb::class_<Conv> def_conv(nb::module_& m, const char* name) {
  return nb::class_<Conv>(m, name)
      .def("run", run<Conv>, nb::arg("x"), nb::arg("images"), nb::arg("y"), nb::arg("bias"), nb::arg("activation"),
           nb::arg("added") = 0)
      .def_prop_ro("out_h", [](const Conv& conv) { return conv.geometry().out_h(); })
      .def_prop_ro("out_w", [](const Conv& conv) { return conv.geometry().out_w(); })
      .def_prop_ro("nbytes", &Conv::bytes);
}

template <class Function, class... More>
void def_pack(nb::module_& m, const char* name, Function function, const More&... more) {
  m.def(name, function, nb::arg("values").noconvert(), nb::arg("mask_bits").noconvert(), nb::arg("rows"),
        nb::arg("columns"), nb::arg("kernel_size"), nb::arg("stride"), nb::arg("padding"), nb::arg("dilation"),
        nb::arg("groups"), nb::arg("image"), nb::arg("kernels"), more...);
}

template <class Function, class... More>
void def_train(nb::module_& m, const char* name, Function function, const More&... more) {
  m.def(name, function, nb::arg("values"), nb::arg("num_values"), nb::arg("mask_bits").noconvert(),
        nb::arg("columns"), nb::arg("kernel_size"), nb::arg("stride"), nb::arg("padding"), nb::arg("dilation"),
        nb::arg("groups"), nb::arg("image"), nb::arg("images"), nb::arg("kernels"), more...);
}

}  // namespace

void bind_conv(nb::module_& m) {
  def_conv<PackedConv>(m, "PackedConv");
  def_conv<Int8Conv>(m, "Int8Conv").def_prop_ro("activation_bits", &Int8Conv::activation_bits);
  def_pack(m, "pack_conv", pack);
  def_pack(m, "pack_int8_conv", pack_int8, nb::arg("activation_bits") = 0);
  def_train(m, "train_conv", forward, nb::arg("x"), nb::arg("bias"), nb::arg("y"));
  def_train(m, "train_conv_grad_input", grad_input, nb::arg("grad"), nb::arg("dx"));
  def_train(m, "train_conv_grad_values", grad_values, nb::arg("grad"), nb::arg("x"));
}

}  // namespace gossamer::bind
