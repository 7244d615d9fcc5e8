// SPDX-License-Identifier: Apache-2.0
// The integer kernels for few tokens against the reference: sums of 64 columns are exact, so only the
// rounding of adding them up may differ. The reference is held against float64 from Python.
#include <cmath>
#include <limits>

#include "gossamer/few_int_layout.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

constexpr float kCanary = -12345.75f;

std::vector<float> run(const PackedWeight& packed, const std::vector<float>& x, const Call& call,
                       const std::vector<float>& bias, int threads) {
  const int64_t x_stride = packed.columns + call.x_pad, y_stride = packed.rows + call.y_pad;
  std::vector<float> y(static_cast<size_t>(call.tokens * y_stride), kCanary);
  packed.run({x.data(), call.tokens, x_stride, y.data(), y_stride, call.has_bias ? bias.data() : nullptr,
              call.activation},
             threads);
  return y;
}

bool is_close(float a, float b, double magnitude) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::fabs(double(a) - b) <= 2e-6 * magnitude;
}

void check_weight(const Weight& weight, bool is_int4, std::mt19937& random, Tally& tally) {
  const std::string family = is_int4 ? "few_int int4" : "few_int int8";
  Call call = random_call(random);
  call.tokens = static_cast<int64_t>(random() % 8 ? random() % 20 : 60 + random() % 12);  // one pass and more
  std::normal_distribution<float> normal(0.0f, call.scale);
  const int64_t x_stride = weight.columns + call.x_pad;
  // NaN in the gaps: one that gets in spoils its row.
  std::vector<float> x(static_cast<size_t>(call.tokens * x_stride), std::numeric_limits<float>::quiet_NaN());
  for (int64_t t = 0; t < call.tokens; ++t)
    for (int64_t k = 0; k < weight.columns; ++k) x[t * x_stride + k] = normal(random);
  if (call.tokens > 1 && weight.columns) x[x_stride + weight.columns / 2] = std::numeric_limits<float>::infinity();
  std::vector<float> bias(static_cast<size_t>(weight.rows));
  for (float& b : bias) b = normal(random);
  const auto wanted = run(*pack_few_int_weight(weight.view(), is_int4, 32, reference::few_int_kernel), x, call, bias, 1);
  for (const Isa isa : isas_to_check()) {
    const auto packed = pack_few_int_weight(weight.view(), is_int4, 32, few_int_kernel(isa));
    const auto y = run(*packed, x, call, bias, 1), again = run(*packed, x, call, bias, 2);
    const double magnitude = 20.0 * call.scale * (std::sqrt(double(weight.columns)) + 1.0) + 1e-30;
    std::string fault;
    for (size_t i = 0; i < y.size() && fault.empty(); ++i) {
      const bool is_gap = static_cast<int64_t>(i) % (weight.rows + call.y_pad) >= weight.rows;
      if (is_gap ? y[i] != kCanary : !is_close(y[i], wanted[i], magnitude))
        fault = "y[" + std::to_string(i) + "] is " + std::to_string(y[i]) + ", expected " + std::to_string(wanted[i]);
      if (!(y[i] == again[i] || (std::isnan(y[i]) && std::isnan(again[i])))) fault = "two threads give other bits";
    }
    fault.empty() ? tally.pass(family, isa, 0.0) : tally.fail(family, isa, fault);
  }
}

}  // namespace

void check_few_int(Tally& tally) {
  std::mt19937 random(20240611);
  for (const int64_t rows : {0, 1, 16, 33})
    for (const int64_t columns : {0, 1, 63, 64, 65, 200, 1100})
      for (const double density : {0.0, 0.02, 0.5, 1.0})
        for (const bool is_int4 : {false, true})
          check_weight(random_weight(rows, columns, density, random), is_int4, random, tally);
}

void fuzz_few_int(std::mt19937& random, Tally& tally) {
  const Draw draw = random_draw(random);
  check_weight(random_weight(draw.rows, draw.columns, draw.density, random), random() % 2, random, tally);
}

}  // namespace gossamer::check
