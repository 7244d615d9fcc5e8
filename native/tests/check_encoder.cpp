// SPDX-License-Identifier: Apache-2.0
// A whole encoder against one written down in double: sequences of all remainders, 1 against 2 threads, and int8
// against it within what quantisation allows.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "gossamer/encoder_model.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

using Matrix = std::vector<double>;  // [token][feature]

struct Layer {
  Weight qkv, out, up, down;
  std::vector<float> qkv_bias, out_bias, up_bias, down_bias, gain, shift;
  int64_t heads, head_width;
  Activation activation;
  bool norm_first = false, is_gated = false, has_attention_norm = true;
  Rotation rotation;
  DistanceBias bias;
};

// Layers as families other than BERT have them.
struct Switches {
  bool norm_first, is_gated, is_rotated;
  int64_t reach, window;
};

std::vector<float> random_floats(int64_t count, float scale, float centre, std::mt19937& random) {
  std::normal_distribution<float> normal(centre, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

Layer random_layer(int64_t features, int64_t heads, int64_t head_width, int64_t inner, double density,
                   const Switches& switches, std::mt19937& random) {
  const int64_t mixed = heads * head_width;
  const Activation activations[] = {Activation::gelu, Activation::relu,       Activation::silu,
                                    Activation::none, Activation::quick_gelu, Activation::gelu_tanh};
  const int64_t up = switches.is_gated ? 2 * inner : inner;
  Rotation rotation;
  if (switches.is_rotated && head_width % 2 == 0) rotation = {random_floats(head_width / 2, 0.3f, 0.5f, random), 0.9f};
  DistanceBias bias = {{}, switches.reach, switches.window};
  if (switches.reach) bias.by_distance = random_floats(heads * (2 * switches.reach - 1), 0.5f, 0.0f, random);
  return {random_weight(3 * mixed, features, density, random),
          random_weight(features, mixed, density, random),
          random_weight(up, features, density, random),
          random_weight(features, inner, density, random),
          random_floats(3 * mixed, 0.5f, 0.0f, random),
          random_floats(features, 0.5f, 0.0f, random),
          random_floats(up, 0.5f, 0.0f, random),
          random_floats(features, 0.5f, 0.0f, random),
          random_floats(features, 0.2f, 1.0f, random),
          random_floats(features, 0.2f, 0.0f, random),
          heads,
          head_width,
          activations[random() % 6],
          switches.norm_first,
          switches.is_gated,
          !switches.norm_first || random() % 3 != 0,
          rotation,
          bias};
}

// The encoder in double. `rounding` moves what an operation gives by up to what fp32, or int8, may.
class Oracle {
 public:
  Oracle(const std::vector<Layer>& layers, const std::vector<int64_t>& lengths, int64_t tokens, Roundings& rounding)
      : layers_(layers), lengths_(lengths), tokens_(tokens), rounding_(rounding) {}

  Matrix run(Matrix x) {
    for (const Layer& layer : layers_) {
      const bool first = layer.norm_first;
      const Matrix in = first && layer.has_attention_norm ? norm(x, layer) : x;
      const Matrix mixed = attention(product(in, layer.qkv, layer.qkv_bias), layer);
      add(x, product(mixed, layer.out, layer.out_bias));
      if (!first) x = norm(x, layer);
      Matrix inner = product(first ? norm(x, layer) : x, layer.up, layer.up_bias);
      for (double& v : inner) v = layer.is_gated ? v : activated(v, layer.activation);
      if (layer.is_gated) {
        const int64_t rows = layer.up.rows / 2;
        Matrix half(tokens_ * rows);
        for (int64_t t = 0; t < tokens_; ++t)
          for (int64_t r = 0; r < rows; ++r)
            half[t * rows + r] = rounding_.of(activated(inner[t * 2 * rows + r], layer.activation) * inner[t * 2 * rows + rows + r], 1);
        inner = half;
      }
      add(x, product(inner, layer.down, layer.down_bias));
      if (!first) x = norm(x, layer);
    }
    return x;
  }

 private:
  const std::vector<Layer>& layers_;
  const std::vector<int64_t>& lengths_;
  const int64_t tokens_;
  Roundings& rounding_;

  static double largest_of(const double* v, int64_t count, int64_t step = 1) {
    double largest = 0.0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(v[i * step]));
    return largest;
  }

  // Of n products, and a bias, in any order: off by a rounding for each of them.
  Matrix product(Matrix x, const Weight& weight, const std::vector<float>& bias) {
    Matrix y(tokens_ * weight.rows), stored(weight.dense.begin(), weight.dense.end());
    if (rounding_.in_int8()) {
      for (int64_t t = 0; t < tokens_; ++t) store(x.data() + t * weight.columns, weight.columns);
      for (int64_t r = 0; r < weight.rows; ++r) {
        const double largest = largest_of(stored.data() + r * weight.columns, weight.columns);
        for (int64_t i = r * weight.columns; i < (r + 1) * weight.columns; ++i)
          if (weight.mask[i]) stored[i] = rounding_.stored(stored[i], largest);
      }
    }
    for (int64_t t = 0; t < tokens_; ++t)
      for (int64_t r = 0; r < weight.rows; ++r) {
        double sum = bias[r], magnitude = std::fabs(sum);
        int64_t kept = 0;
        for (int64_t k = 0; k < weight.columns; ++k) {
          const double product = stored[r * weight.columns + k] * x[t * weight.columns + k];
          sum += product, magnitude += std::fabs(product), kept += weight.mask[r * weight.columns + k];
        }
        y[t * weight.rows + r] = rounding_.within(sum, double(kept + 4) * kRoundoff * magnitude);
      }
    return y;
  }

  void store(double* v, int64_t count, int64_t step = 1) {
    const double largest = largest_of(v, count, step);
    for (int64_t i = 0; i < count; ++i) v[i * step] = rounding_.stored(v[i * step], largest);
  }

  void add(Matrix& x, const Matrix& delta) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = rounding_.of(x[i] + delta[i], 1);
  }

  // The sum of n numbers is off by n roundings of their magnitudes, what is divided by its root by half of that.
  Matrix norm(Matrix x, const Layer& layer) {
    const int64_t features = static_cast<int64_t>(layer.gain.size());
    for (int64_t t = 0; t < tokens_; ++t) {
      double mean = 0.0, magnitude = 0.0, spread = 0.0;
      double* row = x.data() + t * features;
      for (int64_t k = 0; k < features; ++k) mean += row[k] / double(features), magnitude += std::fabs(row[k]) / double(features);
      mean = rounding_.within(mean, double(features + 2) * kRoundoff * magnitude);
      for (int64_t k = 0; k < features; ++k) row[k] = rounding_.of(row[k] - mean, 1), spread += row[k] * row[k];
      spread = rounding_.of(std::sqrt(spread / double(features) + 1e-5), double(features) / 2 + 4);
      for (int64_t k = 0; k < features; ++k) row[k] = rounding_.of(rounding_.of(row[k] / spread * layer.gain[k], 2) + layer.shift[k], 1);
    }
    return x;
  }

  // Queries and keys of a sequence, turned by their positions: the angle is a rounded product, and so are its cosine
  // and its sine.
  void rotate(Matrix& qkv, int64_t first, int64_t length, const Layer& layer) {
    const int64_t half = layer.head_width / 2, mixed = layer.heads * layer.head_width;
    for (int64_t i = 0; i < length; ++i)
      for (int64_t h = 0; h < 2 * layer.heads; ++h)
        for (int64_t e = 0; e < half; ++e) {
          double* a = &qkv[(first + i) * 3 * mixed + h * layer.head_width + e];
          const double angle = float(i) * layer.rotation.frequencies[e], x = a[0], y = a[half];
          const double bound = 4 * kRoundoff * (std::fabs(x) + std::fabs(y)) * layer.rotation.factor;
          a[0] = rounding_.within((x * std::cos(angle) - y * std::sin(angle)) * layer.rotation.factor, bound);
          a[half] = rounding_.within((y * std::cos(angle) + x * std::sin(angle)) * layer.rotation.factor, bound);
        }
  }

  static double bias_of(const Layer& layer, int64_t head, int64_t distance) {
    const auto [values, reach, window] = layer.bias;
    if (window && std::abs(distance) > window) return -INFINITY;
    if (!reach) return 0.0;
    return values[head * (2 * reach - 1) + std::clamp(distance, 1 - reach, reach - 1) + reach - 1];
  }

  // The polynomials promise exp and erf to 2e-7, which moves the result by less than 2e-7 |v|; as much for the
  // roundings around them.
  double activated(double v, Activation activation) {
    const double exact = exactly_activated(v, activation);
    return exact == v || activation == Activation::relu ? exact : rounding_.within(exact, 4e-7 * std::fabs(v));
  }

  static double exactly_activated(double v, Activation activation) {
    switch (activation) {
      case Activation::relu: return v < 0 ? 0 : v;
      case Activation::gelu: return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
      case Activation::silu: return v / (1 + std::exp(-v));
      case Activation::quick_gelu: return v / (1 + std::exp(-1.702 * v));
      case Activation::gelu_tanh: return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
      case Activation::none: break;
    }
    return v;
  }

  Matrix attention(Matrix qkv, const Layer& layer) {
    const int64_t width = layer.head_width, mixed = layer.heads * width;
    Matrix y(tokens_ * mixed);
    int64_t first = 0;
    for (const int64_t length : lengths_) {
      if (!layer.rotation.frequencies.empty()) rotate(qkv, first, length, layer);
      for (int64_t h = 0; h < layer.heads; ++h) {
        const auto at = [&](int64_t token, int64_t part, int64_t e) -> double& {
          return qkv[(first + token) * 3 * mixed + part * mixed + h * width + e];
        };
        // In int8 a query and a key share a step, and so does a column of values.
        for (int64_t i = 0; i < length; ++i) store(&at(i, 0, 0), width), store(&at(i, 1, 0), width);
        for (int64_t e = 0; length && e < width; ++e) store(&at(0, 2, e), length, 3 * mixed);
        for (int64_t i = 0; i < length; ++i) {
          Matrix chance(length);
          double top = -INFINITY, sum = 0;
          for (int64_t j = 0; j < length; ++j) {
            double magnitude = 0.0;
            for (int64_t e = 0; e < width; ++e) chance[j] += at(i, 0, e) * at(j, 1, e), magnitude += std::fabs(at(i, 0, e) * at(j, 1, e));
            chance[j] = rounding_.within(chance[j], double(width + 4) * kRoundoff * magnitude);
            const double bias = bias_of(layer, h, i - j);
            top = std::max(top, chance[j] = std::isinf(bias) ? bias : rounding_.of(chance[j] * 0.1 + bias, 1));
          }
          for (double& c : chance) sum += c = std::isinf(c) ? 0.0 : rounding_.of(std::exp(c - top), 4 + (top - c));
          for (double& c : chance) c = rounding_.stored(c, c ? 1.0 : 0.0);
          for (int64_t e = 0; e < width; ++e) {
            double value = 0.0, magnitude = 0.0;
            for (int64_t j = 0; j < length; ++j) value += chance[j] / sum * at(j, 2, e), magnitude += std::fabs(chance[j] / sum * at(j, 2, e));
            y[(first + i) * mixed + h * width + e] = rounding_.within(value, 2.0 * double(length + 4) * kRoundoff * magnitude);
          }
        }
      }
      first += length;
    }
    return y;
  }
};

constexpr Int8Options kPanel = {DwordForm::panel, 8, 0.0f}, kQuad = {DwordForm::neighbours, 8, 0.0f}, kDense = {},
                      kWindow = {};

EncoderModel packed(const std::vector<Layer>& layers, int64_t features, Isa isa, const Int8Options* int8) {
  EncoderModel model(isa, features);
  const auto linear = [&](const Weight& weight, const std::vector<float>& bias) {
    return int8 == &kDense    ? pack_dense_linear(weight.view(), bias.data(), isa)
           : int8 == &kWindow ? pack_window_linear(weight.view(), bias.data(), isa)
                              : pack_panel_linear(weight.view(), bias.data(), isa, int8);
  };
  for (const Layer& layer : layers)
    model.add({linear(layer.qkv, layer.qkv_bias),
               linear(layer.out, layer.out_bias),
               linear(layer.up, layer.up_bias),
               linear(layer.down, layer.down_bias),
               layer.has_attention_norm ? NormWeights{layer.gain, layer.shift, 1e-5f} : NormWeights{{}, {}, 1e-5f},
               {layer.gain, layer.shift, 1e-5f},
               layer.heads,
               layer.head_width,
               0.1f,
               layer.activation,
               layer.norm_first,
               layer.is_gated,
               layer.rotation,
               layer.bias});
  return model;
}

void check_case(int64_t features, int64_t heads, int64_t head_width, int64_t inner, double density,
                const std::vector<int64_t>& lengths, std::mt19937& random, Tally& tally,
                const Switches& switches = {}) {
  int64_t tokens = 0;
  for (const int64_t length : lengths) tokens += length;
  std::vector<Layer> layers;
  for (int i = 0; i < 2; ++i) layers.push_back(random_layer(features, heads, head_width, inner, density, switches, random));
  const std::vector<float> x = random_floats(tokens * features, 1.0f, 0.0f, random);
  const auto run_oracle = [&](Roundings& rounding) { return Oracle(layers, lengths, tokens, rounding).run({x.begin(), x.end()}); };
  Roundings exact(nullptr);
  const Matrix wanted = run_oracle(exact);
  double largest = 0.0;
  for (const double v : wanted) largest = std::max(largest, std::fabs(v));
  // Of fp32 the largest error counts; of int8 the mean square, since two layers of such random weights make much of
  // single roundings to 1 in 127. A draw may move little by luck, where there are few numbers.
  const double most = 2.0 * moved_by(wanted, random, false, run_oracle).most + 8.0 * kRoundoff * largest;
  const double typical = 2.0 * moved_by(wanted, random, true, run_oracle).typical + largest / 127;
  const std::string what = std::to_string(features) + " features, " + std::to_string(heads) + " heads of " +
                           std::to_string(head_width) + ", inner " + std::to_string(inner) + ", " +
                           std::to_string(lengths.size()) + " sequences, " + std::to_string(tokens) + " tokens" +
                           (switches.norm_first ? ", norms first" : "") + (switches.is_gated ? ", gated" : "") +
                           (switches.is_rotated ? ", rotated" : "") + ", reach " + std::to_string(switches.reach) +
                           ", window " + std::to_string(switches.window);
  for (const Isa isa : isas_to_check())
    for (const Int8Options* int8 : {static_cast<const Int8Options*>(nullptr), &kPanel, &kQuad, &kDense, &kWindow}) {
      const EncoderModel model = packed(layers, features, isa, int8);
      const int64_t stride = features + 3;
      std::vector<float> results[2];
      for (const int threads : {1, 2}) {
        std::vector<float>& y = results[threads - 1];
        y.assign(std::max<int64_t>(tokens * stride, 1), -7.0f);
        model.run(x.data(), features, y.data(), stride, lengths, threads);
      }
      double worst = 0.0, squares = 0.0;
      bool inside = true;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t k = 0; k < stride; ++k) {
          const float got = results[0][t * stride + k];
          if (k >= features) {
            inside = inside && got == -7.0f;
            continue;
          }
          const double error = std::fabs(got - wanted[t * features + k]);
          worst = std::max(worst, std::isnan(error) ? INFINITY : error / most);
          squares += error * error;
        }
      // These layouts take the bits of the set, and steps of 7 bits are twice as large.
      const bool takes_7_bits = (int8 == &kDense || int8 == &kWindow) && int8_kernels(isa).activation_bits == 7;
      if (int8) worst = squares ? std::sqrt(squares / double(tokens * features)) / (takes_7_bits ? 2 * typical : typical) : 0.0;
      const std::string family = int8 ? "encoder int8" : "encoder";
      if (results[0] != results[1])
        tally.fail(family, isa, "two threads differ from one: " + what);
      else if (!inside)
        tally.fail(family, isa, "wrote outside y: " + what);
      else if (!(worst <= 1.0))
        tally.fail(family, isa, "off by " + std::to_string(worst) + " tolerances: " + what);
      else
        tally.pass(family, isa, worst);
    }
}

// One head of the int8 attention by itself, against the same in double on the values before they are rounded: within
// 4 % of the largest value, nothing written beside its tokens and features, NaN where a token holds one.
void check_int8_head(int64_t first, int64_t length, int64_t width, bool has_nan, std::mt19937& random, Tally& tally) {
  const int64_t tiles = (first + length + kTileTokens - 1) / kTileTokens, rows = 3 * width + 2;
  const auto panel_floats = static_cast<size_t>(rows * tiles * kTileTokens);
  // In front of the spare tile; by hand, since vectors are not aligned to lines.
  auto* from = static_cast<float*>(std::aligned_alloc(64, (panel_floats + kTileTokens) * sizeof(float)));
  auto* into = static_cast<float*>(std::aligned_alloc(64, panel_floats * sizeof(float)));
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::generate_n(from, panel_floats + kTileTokens, [&] { return normal(random); });
  std::fill_n(into, panel_floats, -7.0f);
  const AttentionCall call = {{from, rows}, 0, width, 2 * width, {into, rows}, 1, width, first, length, 0.5f};
  const auto at = [&](const float* panels, int64_t token, int64_t feature) -> const float& {
    token += first;
    return panels[(token / kTileTokens * rows + feature) * kTileTokens + token % kTileTokens];
  };
  if (has_nan) const_cast<float&>(at(from, length / 2, width)) = NAN;  // of a key
  const size_t bytes = int8_attention_scratch_bytes(length, width);
  void* scratch = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  encoder_int8_kernels(Isa::avx512).attend(call, scratch);
  double worst = 0.0, largest = 0.0;
  int64_t written = 0, nans = 0;
  for (size_t i = 0; i < panel_floats; ++i) written += into[i] != -7.0f;
  for (int64_t i = 0; i < length; ++i) {
    Matrix chance(length);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < length; ++j) {
      for (int64_t e = 0; e < width; ++e) chance[j] += double(at(from, i, e)) * at(from, j, width + e);
      top = std::max(top, chance[j] *= 0.5);
    }
    for (double& c : chance) sum += c = std::exp(c - top);
    for (int64_t e = 0; e < width; ++e) {
      double wanted = 0;
      for (int64_t j = 0; j < length; ++j) {
        wanted += chance[j] / sum * at(from, j, 2 * width + e);
        largest = std::max(largest, std::fabs(double(at(from, j, 2 * width + e))));
      }
      nans += std::isnan(at(into, i, 1 + e));
      worst = std::max(worst, std::fabs(at(into, i, 1 + e) - wanted));
    }
  }
  std::free(from);
  std::free(into);
  std::free(scratch);
  const std::string what = std::to_string(length) + " tokens from " + std::to_string(first) + " on, width " + std::to_string(width);
  const double of_tolerance = worst / (0.04 * largest);
  if (written != length * width)
    tally.fail("attention int8", Isa::avx512, "wrote " + std::to_string(written) + " numbers: " + what);
  else if (has_nan ? nans != length * width : !(of_tolerance <= 1.0))
    tally.fail("attention int8", Isa::avx512, "off by " + std::to_string(of_tolerance) + " tolerances, " + std::to_string(nans) + " NaN: " + what);
  else
    tally.pass("attention int8", Isa::avx512, has_nan ? 0.0 : of_tolerance);
}

void check_int8_attention(std::mt19937& random, Tally& tally) {
  bool has_avx512 = false;
  for (const Isa isa : isas_to_check()) has_avx512 = has_avx512 || isa == Isa::avx512;
  if (!has_avx512 || !encoder_int8_kernels(Isa::avx512).attend) return;
  for (const int64_t first : {0, 5, 63})
    for (const int64_t length : {1, 2, 3, 4, 15, 16, 17, 33, 64, 65, 128, 131})
      for (const int64_t width : {1, 3, 4, 6, 32, 64})
        for (const bool has_nan : {false, true}) check_int8_head(first, length, width, has_nan, random, tally);
}

}  // namespace

void check_encoder(Tally& tally) {
  std::mt19937 random(20261116);
  const std::vector<int64_t> batches[] = {{},       {1},      {7},          {16},          {17},       {33},     {64},
                                          {65},     {128},    {1, 1, 1},    {5, 60, 3},    {63, 1, 2}, {0, 4},   {130},
                                          {31, 33}, {48, 16}, {20, 20, 20}, {15, 1, 16, 9}};
  for (const auto& lengths : batches)
    for (const double density : {0.3, 1.0}) check_case(24, 3, 8, 40, density, lengths, random, tally);
  for (const double density : {0.0, 0.1, 0.6}) check_case(97, 2, 5, 131, density, {9, 70}, random, tally);
  check_case(1, 1, 1, 1, 1.0, {3}, random, tally);
  check_case(16, 0, 4, 8, 0.5, {10}, random, tally);
  // Groups of sequences that fill tiles, fewer and more than threads.
  for (const auto& lengths : {std::vector<int64_t>{64, 64, 64}, {0, 128, 0, 30, 34, 64, 5}, {128, 128}})
    check_case(24, 3, 8, 40, 0.3, lengths, random, tally);
  // Each switch by itself, then all of them; windows that end before, at and behind the edges of tiles and vectors.
  const Switches families[] = {{true, false, false, 0, 0}, {false, true, false, 0, 0}, {false, false, true, 0, 0},
                               {false, false, false, 4, 0}, {false, false, false, 0, 3}, {true, true, true, 0, 1},
                               {true, true, true, 9, 16},   {true, false, true, 200, 63}, {false, true, true, 1, 64}};
  for (const Switches& switches : families)
    for (const auto& lengths : {std::vector<int64_t>{}, {1}, {17}, {63, 2, 66}, {130}, {0, 64, 5}})
      for (const double density : {0.3, 1.0}) check_case(24, 3, 8, 40, density, lengths, random, tally, switches);
  check_case(24, 3, 8, 40, 1.0, {530}, random, tally, {true, true, true, 0, 16});  // behind the table of turns
  check_int8_attention(random, tally);
}

void fuzz_encoder(std::mt19937& random, Tally& tally) {
  std::vector<int64_t> lengths(random() % 4);
  for (int64_t& length : lengths) length = random() % (random() % 4 ? 30 : 140);
  const Switches switches = {random() % 2 == 0, random() % 2 == 0, random() % 2 == 0,
                             static_cast<int64_t>(random() % 3 ? 0 : 1 + random() % 80),
                             static_cast<int64_t>(random() % 3 ? 0 : 1 + random() % 80)};
  check_case(1 + random() % 60, 1 + random() % 4, 1 + random() % 12, 1 + random() % 80, (random() % 11) / 10.0,
             lengths, random, tally, switches);
}

}  // namespace gossamer::check
