// SPDX-License-Identifier: Apache-2.0
// Convolutions against a float64 oracle: kernel sizes, strides, padding, dilation, groups, odd images.
#include <cmath>
#include <cstring>

#include "gossamer/conv_train.hpp"
#include "gossamer/int8_conv_layout.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

constexpr float kCanary = -12345.75f;
constexpr double kRoundoff = 1.0 / (1 << 24);

struct Case {
  ConvGeometry geometry;
  int64_t rows, images;
  double density;
  bool has_bias, has_relu;
};

Case random_case(std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  static const int64_t kernels[] = {1, 1, 2, 3, 3, 5};
  static const double densities[] = {0.0, 0.05, 0.1, 0.5, 1.0};
  Case c{};
  ConvGeometry& g = c.geometry;
  const bool pointwise = draw(0, 3) == 0;
  g.kernel_h = pointwise ? 1 : kernels[draw(0, 5)];
  g.kernel_w = pointwise ? 1 : kernels[draw(0, 5)];
  g.stride_h = pointwise ? 1 : draw(1, 3);
  g.stride_w = pointwise ? 1 : draw(1, 3);
  g.pad_h = pointwise ? 0 : draw(0, 3);
  g.pad_w = pointwise ? 0 : draw(0, 3);
  g.pad_end_h = g.pad_h;
  g.pad_end_w = g.pad_w;
  g.dilation_h = draw(1, 2);
  g.dilation_w = draw(1, 2);
  g.groups = draw(0, 2) ? 1 : draw(1, 4);
  g.channels = draw(0, 5) ? draw(1, 6) : draw(20, 110);
  g.height = g.dilation_h * (g.kernel_h - 1) + draw(1, 12);
  g.width = g.dilation_w * (g.kernel_w - 1) + draw(1, draw(0, 5) ? 18 : 90);
  c.rows = g.groups * (draw(0, 7) ? draw(1, 20) : draw(128, 140));
  c.images = draw(1, 3);
  c.density = densities[draw(0, 4)];
  c.has_bias = draw(0, 1);
  c.has_relu = draw(0, 1);
  return c;
}

std::string describe(const Case& c) {
  const ConvGeometry& g = c.geometry;
  std::string text = "conv";
  for (const int64_t n : {g.channels, g.height, g.width, g.kernel_h, g.kernel_w, g.stride_h, g.stride_w, g.pad_h,
                          g.pad_w, g.dilation_h, g.dilation_w, g.groups, c.rows, c.images})
    text += " " + std::to_string(n);
  return text;
}

// The sum for one output and the magnitude its rounding errors are measured by.
void oracle(const Case& c, const Weight& weight, const float* x, const float* bias, double added, int64_t image,
            int64_t row, int64_t oh, int64_t ow, double* sum, double* tolerance) {
  const ConvGeometry& g = c.geometry;
  double magnitude = std::fabs(added) + (bias ? std::fabs(bias[row]) : 0.0), terms = 4;
  *sum = added + (bias ? bias[row] : 0.0);
  const int64_t first = (image * g.groups + row / (c.rows / g.groups)) * g.channels;
  for (int64_t k = 0; k < weight.columns; ++k) {
    if (!weight.mask[row * weight.columns + k]) continue;
    const int64_t channel = k / (g.kernel_h * g.kernel_w), position = k % (g.kernel_h * g.kernel_w);
    const int64_t h = oh * g.stride_h + position / g.kernel_w * g.dilation_h - g.pad_h;
    const int64_t w = ow * g.stride_w + position % g.kernel_w * g.dilation_w - g.pad_w;
    if (h < 0 || h >= g.height || w < 0 || w >= g.width) continue;
    const double product =
        double(weight.dense[row * weight.columns + k]) * x[((first + channel) * g.height + h) * g.width + w];
    *sum += product;
    magnitude += std::fabs(product);
    terms += 1;
  }
  if (c.has_relu && *sum < 0.0) *sum = 0.0;
  *tolerance = terms * kRoundoff * magnitude;
}

void check_case(const Case& c, Isa isa, const Weight& weight, unsigned seed, Tally& tally) {
  const ConvGeometry& g = c.geometry;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  // Exact sizes, so that AddressSanitizer sees any access outside.
  std::vector<float> x(static_cast<size_t>(c.images * g.groups * g.channels * g.height * g.width));
  std::vector<float> bias(static_cast<size_t>(c.rows));
  for (float& v : x) v = normal(random);
  for (float& v : bias) v = normal(random);
  const float* bias_or_null = c.has_bias ? bias.data() : nullptr;
  std::vector<float> added(static_cast<size_t>(c.images * c.rows * g.out_h() * g.out_w()));
  for (float& v : added) v = normal(random);
  const float* added_or_null = seed / 2 % 2 ? added.data() : nullptr;
  const PackedConv packed(weight.view(), g, conv_kernels(isa));
  std::vector<float> y[2];
  for (int threads = 1; threads <= 2; ++threads) {
    y[threads - 1].assign(static_cast<size_t>(c.images * c.rows * g.out_h() * g.out_w()), kCanary);
    packed.run(x.data(), c.images, y[threads - 1].data(), added_or_null, bias_or_null,
               c.has_relu ? Activation::relu : Activation::none, threads);
  }
  double worst = 0.0;
  size_t i = 0;
  for (int64_t image = 0; image < c.images; ++image)
    for (int64_t row = 0; row < c.rows; ++row)
      for (int64_t oh = 0; oh < g.out_h(); ++oh)
        for (int64_t ow = 0; ow < g.out_w(); ++ow, ++i) {
          double sum, tolerance;
          oracle(c, weight, x.data(), bias_or_null, added_or_null ? added[i] : 0.0, image, row, oh, ow, &sum, &tolerance);
          const double error = std::fabs(y[0][i] - sum);
          if (!(error <= tolerance)) {
            tally.fail("conv", isa, describe(c) + ": y[" + std::to_string(i) + "] = " + std::to_string(y[0][i]) +
                                        ", expected " + std::to_string(sum));
            return;
          }
          if (tolerance > 0.0 && error / tolerance > worst) worst = error / tolerance;
        }
  if (std::memcmp(y[0].data(), y[1].data(), y[0].size() * sizeof(float)))
    tally.fail("conv", isa, describe(c) + ": 2 threads and 1 thread differ");
  else
    tally.pass("conv", isa, worst);
}

// Both gradients, with 1 and 2 threads, against plain loops in float64.
void check_gradients(const Case& c, Isa isa, const Weight& weight, unsigned seed, Tally& tally) {
  const ConvGeometry& g = c.geometry;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const int64_t image_floats = g.groups * g.channels * g.height * g.width, out = g.out_h() * g.out_w();
  std::vector<float> x(static_cast<size_t>(c.images * image_floats)), grad(static_cast<size_t>(c.images * c.rows * out));
  for (float& v : x) v = normal(random);
  for (float& v : grad) v = normal(random);
  std::vector<double> dx(x.size()), dx_size(x.size()), dw, dw_size;
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t k = 0; k < weight.columns; ++k) {
      if (!weight.mask[r * weight.columns + k]) continue;
      const int64_t channel = k / (g.kernel_h * g.kernel_w), position = k % (g.kernel_h * g.kernel_w);
      const double value = weight.dense[r * weight.columns + k];
      double sum = 0.0, size = 0.0;
      for (int64_t image = 0; image < c.images; ++image)
        for (int64_t o = 0; o < out; ++o) {
          const int64_t h = o / g.out_w() * g.stride_h + position / g.kernel_w * g.dilation_h - g.pad_h;
          const int64_t w = o % g.out_w() * g.stride_w + position % g.kernel_w * g.dilation_w - g.pad_w;
          if (h < 0 || h >= g.height || w < 0 || w >= g.width) continue;
          const int64_t plane = (image * g.groups + r / (c.rows / g.groups)) * g.channels + channel;
          const int64_t at = (plane * g.height + h) * g.width + w;
          const double dy = grad[(image * c.rows + r) * out + o];
          sum += dy * x[at];
          size += std::fabs(dy * x[at]);
          dx[at] += dy * value;
          dx_size[at] += std::fabs(dy * value);
        }
      dw.push_back(sum);
      dw_size.push_back(size);
    }
  double worst = 0.0;
  const auto compare = [&](const char* name, const std::vector<float> (&got)[2], const std::vector<double>& expected,
                           const std::vector<double>& sizes, int64_t terms) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const double error = std::fabs(got[0][i] - expected[i]), tolerance = (terms + 4) * kRoundoff * sizes[i];
      if (!(error <= tolerance) || got[0][i] != got[1][i]) {
        tally.fail("conv", isa, describe(c) + ": " + name + "[" + std::to_string(i) + "] = " +
                                    std::to_string(got[0][i]) + " and " + std::to_string(got[1][i]) + ", expected " +
                                    std::to_string(expected[i]));
        return false;
      }
      if (tolerance > 0.0 && error / tolerance > worst) worst = error / tolerance;
    }
    return true;
  };
  std::vector<float> found_dx[2], found_dw[2];
  for (int i = 0; i < 2; ++i) {
    found_dx[i].assign(x.size(), kCanary);
    found_dw[i].assign(dw.size(), kCanary);
    train_conv_grad_input(weight.view(), g, grad.data(), c.images, found_dx[i].data(), isa, i + 1);
    train_conv_grad_values(weight.view(), g, grad.data(), x.data(), c.images, found_dw[i].data(), isa, i + 1);
  }
  if (compare("dX", found_dx, dx, dx_size, c.rows * g.kernel_h * g.kernel_w) &&
      compare("dW", found_dw, dw, dw_size, c.images * out))
    tally.pass("conv", isa, worst);
}

struct Int8Set {
  const char* name;
  Isa isa;
  const Int8ConvKernels& kernels;
};

std::vector<Int8Set> int8_sets() {
  std::vector<Int8Set> sets;
  for (const Isa isa : isas_to_check()) sets.push_back({"conv int8", isa, int8_conv_kernels(isa)});
#ifdef GOSSAMER_EMULATED_AVX512
  sets.push_back({"conv int8 vnni", Isa::avx512, avx512vnni::int8_conv_kernels});
#endif
  return sets;
}

// The int8 reference against float64 within half a step of both scales for every product.
std::string fault_of_int8(const Case& c, int bits, const Weight& weight, const std::vector<float>& x,
                          const std::vector<float>& y, double* worst) {
  const ConvGeometry& g = c.geometry;
  const size_t image_floats = x.size() / static_cast<size_t>(c.images);
  size_t i = 0;
  for (int64_t image = 0; image < c.images; ++image) {
    double top = 0.0;
    for (size_t j = image * image_floats; j < (image + 1) * image_floats; ++j) top = std::fmax(top, std::fabs(x[j]));
    const double x_step = top / activation_limit(bits) / 2;
    for (int64_t row = 0; row < c.rows; ++row) {
      double w_top = 0.0, w_sum = 0.0, kept = 0.0;
      for (int64_t k = 0; k < weight.columns; ++k) {
        w_top = std::fmax(w_top, std::fabs(weight.dense[row * weight.columns + k]));
        w_sum += std::fabs(weight.dense[row * weight.columns + k]);
        kept += weight.mask[row * weight.columns + k];
      }
      const double bound = 1.001 * (w_sum * x_step + kept * (top + x_step) * w_top / 254) + 1e-5 * w_sum * top;
      for (int64_t o = 0; o < g.out_h() * g.out_w(); ++o, ++i) {
        double sum, tolerance;
        oracle(c, weight, x.data(), nullptr, 0.0, image, row, o / g.out_w(), o % g.out_w(), &sum, &tolerance);
        const double error = std::fabs(y[i] - sum);
        if (!(error <= bound)) return "y[" + std::to_string(i) + "] is wrong by " + std::to_string(error);
        if (bound > 0.0) *worst = std::fmax(*worst, error / bound);
      }
    }
  }
  return "";
}

// The same bits as the reference on every instruction set, with 1 and 2 threads.
void check_int8(Case c, const Weight& weight, unsigned seed, Tally& tally) {
  const ConvGeometry& g = c.geometry;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(c.images * g.groups * g.channels * g.height * g.width));
  std::vector<float> bias(static_cast<size_t>(c.rows));
  for (float& v : x) v = normal(random);
  for (float& v : bias) v = normal(random);
  std::vector<float> added(static_cast<size_t>(c.images * c.rows * g.out_h() * g.out_w()));
  for (float& v : added) v = normal(random);
  const int bits = seed % 2 ? 7 : 8;
  const auto run = [&](const Int8ConvKernels& kernels, bool has_bias, int threads) {
    const bool has_added = has_bias && seed / 2 % 2;
    const Int8Conv packed(weight.view(), g, bits, kernels);
    std::vector<float> y(static_cast<size_t>(c.images * c.rows * g.out_h() * g.out_w()), kCanary);
    packed.run(x.data(), c.images, y.data(), has_added ? added.data() : nullptr, has_bias ? bias.data() : nullptr,
               c.has_relu ? Activation::relu : Activation::none, threads);
    return y;
  };
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
  };
  double worst = 0.0;
  const std::string fault = fault_of_int8(c, bits, weight, x, run(reference::int8_conv_kernels, false, 1), &worst);
  fault.empty() ? tally.pass("conv int8", Isa::reference, worst)
                : tally.fail("conv int8", Isa::reference, describe(c) + ": " + fault);
  const std::vector<float> wanted = run(reference::int8_conv_kernels, c.has_bias, 1);
  for (const Int8Set& set : int8_sets())
    if (!same(run(set.kernels, c.has_bias, 1), wanted))
      tally.fail(set.name, set.isa, describe(c) + ": differs from the reference");
    else if (!same(run(set.kernels, c.has_bias, 2), wanted))
      tally.fail(set.name, set.isa, describe(c) + ": 2 threads and 1 thread differ");
    else
      tally.pass(set.name, set.isa, 0.0);
}

}  // namespace

void fuzz_conv(std::mt19937& random, Tally& tally) {
  const Case c = random_case(random);
  const int64_t columns = c.geometry.channels * c.geometry.kernel_h * c.geometry.kernel_w;
  const Weight weight = random_weight(c.rows, columns, c.density, random);
  const unsigned seed = random();
  for (const Isa isa : isas_to_check()) {
    check_case(c, isa, weight, seed, tally);
    check_gradients(c, isa, weight, seed, tally);
  }
  check_int8(c, weight, seed, tally);
}

void check_conv(Tally& tally) {
  std::mt19937 random(20240609);
  for (int i = 0; i < 120; ++i) fuzz_conv(random, tally);
}

}  // namespace gossamer::check
