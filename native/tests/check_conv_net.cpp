// SPDX-License-Identifier: Apache-2.0
// A network of convolutions against one written down in double: images of all remainders and their means, 1 against 2
// threads, and int8 against it within what quantisation allows.
#include <algorithm>
#include <cmath>
#include <utility>

#include "gossamer/conv_net_model.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

// [image][channel][row][column]
struct Images {
  int64_t images, channels, height, width;
  std::vector<double> pixels;

  Images(int64_t n, int64_t c, int64_t h, int64_t w) : images(n), channels(c), height(h), width(w), pixels(n * c * h * w) {}
  double& at(int64_t n, int64_t c, int64_t r, int64_t w) { return pixels[((n * channels + c) * height + r) * width + w]; }
  double top() const {
    double most = 1e-6;
    for (const double v : pixels) most = std::max(most, std::fabs(v));
    return most;
  }
  Images means() const {
    Images y(images, channels, 1, 1);
    const int64_t size = height * width;
    for (size_t i = 0; i < pixels.size(); ++i) y.pixels[i / size] += pixels[i] / static_cast<double>(size);
    return y;
  }
};

// relu(conv(x) + added), kernel x kernel, "same" padding.
Images convolved(Images& x, const Weight& weight, int64_t kernel, int64_t stride, const std::vector<float>& bias,
                 Images* added, bool relu) {
  Images y(x.images, weight.rows, (x.height - 1) / stride + 1, (x.width - 1) / stride + 1);
  for (int64_t n = 0; n < y.images; ++n)
    for (int64_t o = 0; o < y.channels; ++o)
      for (int64_t r = 0; r < y.height; ++r)
        for (int64_t c = 0; c < y.width; ++c) {
          double sum = bias[o] + (added ? added->at(n, o, r, c) : 0.0);
          for (int64_t k = 0; k < weight.columns; ++k) {
            const int64_t row = r * stride + k / kernel % kernel - kernel / 2, column = c * stride + k % kernel - kernel / 2;
            if (row >= 0 && row < x.height && column >= 0 && column < x.width)
              sum += double(weight.dense[o * weight.columns + k]) * x.at(n, k / (kernel * kernel), row, column);
          }
          y.at(n, o, r, c) = relu ? std::max(sum, 0.0) : sum;
        }
  return y;
}

struct Case {
  int64_t images, height, width, channels, wider;
  double density;
};

void check_case(const Case& size, Isa isa, unsigned seed, Tally& tally) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto floats = [&](int64_t count) {
    std::vector<float> values(count);
    for (float& v : values) v = normal(random);
    return values;
  };
  const Weight same = random_weight(size.channels, size.channels * 9, size.density, random);
  const Weight down = random_weight(size.wider, size.channels * 9, size.density, random);
  const Weight point = random_weight(size.wider, size.wider, size.density, random);
  const std::vector<float> same_bias = floats(size.channels), down_bias = floats(size.wider), point_bias = floats(size.wider);
  const std::vector<float> x = floats(size.images * size.channels * size.height * size.width);

  Images first(size.images, size.channels, size.height, size.width);
  std::copy(x.begin(), x.end(), first.pixels.begin());
  Images second = convolved(first, same, 3, 1, same_bias, &first, true);
  Images third = convolved(second, down, 3, 2, down_bias, nullptr, true);
  Images last = convolved(third, point, 1, 1, point_bias, &third, false);

  for (const auto& [int8, mean] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    const Images expected = mean ? last.means() : last;
    ConvNet net(isa, int8);
    const int signed_zero = 1 << (net.activation_bits() - 1);
    const auto value = [&](int64_t shape, int64_t channels, double top, bool positive) {
      const double most = positive ? 2 * signed_zero - 1 : signed_zero - 1;
      return net.add_value({shape, channels, int8 ? static_cast<float>(top / most) : 0.0f, positive || !int8 ? 0 : signed_zero});
    };
    const int64_t large = net.add_shape({size.height, size.width, 1});
    const int64_t small = net.add_shape({third.height, third.width, 1});
    const int64_t input = value(large, size.channels, first.top(), false);
    const int64_t a = value(large, size.channels, second.top(), true);
    const int64_t phases = value(small, 4 * size.channels, second.top(), true);
    const int64_t b = value(small, size.wider, third.top(), true), c = value(small, size.wider, last.top(), false);
    std::vector<NetPosition> around, halves;
    for (int64_t r = -1; r <= 1; ++r)
      for (int64_t w = -1; w <= 1; ++w) {
        around.push_back({0, r, w});
        halves.push_back({(r & 1) * 2 + (w & 1), r < 0 ? -1 : 0, w < 0 ? -1 : 0});
      }
    net.add_conv({input, a, input, 0, true, 1, around}, same.view(), same_bias.data());
    net.add_phases(a, phases, {{0, 0}, {0, 1}, {1, 0}, {1, 1}});
    net.add_conv({phases, b, -1, 0, true, 4, halves}, down.view(), down_bias.data());
    net.add_conv({b, c, b, 0, false, 1, {{0, 0, 0}}}, point.view(), point_bias.data());
    net.finish(c, mean);
    std::vector<float> y(expected.pixels.size(), 7.0f), again(y.size(), 9.0f);
    net.run(x.data(), size.images, y.data(), 1);
    net.run(x.data(), size.images, again.data(), 2);
    double worst = 0.0;
    for (size_t i = 0; i < y.size(); ++i) worst = std::max(worst, std::fabs(y[i] - expected.pixels[i]));
    // Rounding of sums, or of three layers of codes, which are finer in fixed point than in bytes.
    const double tolerance = last.top() * (!int8 ? 1e-5 : net.activation_bits() > 8 ? 0.02 : 0.15);
    const std::string family = std::string("conv_net") + (mean ? "_mean" : "") + (int8 ? "_int8" : "");
    if (!(worst <= tolerance))
      tally.fail(family, isa, "error " + std::to_string(worst) + " of " + std::to_string(last.top()) + ", seed " + std::to_string(seed));
    else if (y != again)
      tally.fail(family, isa, "2 threads differ from 1, seed " + std::to_string(seed));
    else
      tally.pass(family, isa, worst / tolerance);
  }
}

}  // namespace

void check_conv_net(Tally& tally) {
  const Case cases[] = {{1, 1, 1, 1, 1, 1.0},  {2, 7, 7, 5, 3, 0.3},    {3, 8, 8, 16, 20, 0.1}, {1, 31, 33, 4, 6, 0.5},
                        {9, 5, 66, 3, 2, 0.2}, {1, 64, 1, 2, 130, 0.05}, {2, 6, 6, 3, 4, 0.0},
                        {1, 6, 20, 80, 10, 0.1}};
  unsigned seed = 1;
  for (const Isa isa : isas_to_check())
    for (const Case& size : cases) check_case(size, isa, seed++, tally);
}

void fuzz_conv_net(std::mt19937& random, Tally& tally) {
  const auto below = [&](int64_t most) { return static_cast<int64_t>(1 + random() % most); };
  const double densities[] = {0.0, 0.05, 0.1, 0.5, 1.0};
  const Case size = {below(5), below(20), below(70), below(20), below(40), densities[random() % 5]};
  const unsigned seed = random();
  for (const Isa isa : isas_to_check()) check_case(size, isa, seed, tally);
}

}  // namespace gossamer::check
