// SPDX-License-Identifier: Apache-2.0
#include "harness.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "gossamer/bf16.hpp"

namespace gossamer::check {
namespace {

constexpr float kCanary = -12345.75f;

struct Oracle {
  std::vector<double> y, tolerance;  // [tokens][rows]
};

double activate(double v, Activation activation) {
  switch (activation) {
    case Activation::relu: return v > 0.0 ? v : 0.0;
    case Activation::gelu: return 0.5 * v * std::erfc(-v * std::sqrt(0.5));
    case Activation::silu: return v / (1.0 + std::exp(-v));
    case Activation::quick_gelu: return v / (1.0 + std::exp(-1.702 * v));
    case Activation::gelu_tanh: return 0.5 * v * (1.0 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    case Activation::none: break;
  }
  return v;
}

// A sum of n products in any order is off by at most about n roundings of the sum of magnitudes.
// The slope of every activation is below 1.13. The polynomials promise erf to 2e-7 absolute and
// exp to 2e-7 relative, either of which moves the result by less than 2e-7 |v|; as much again
// covers the roundings around them.
Oracle oracle_of(const Weight& weight, const Call& call, const float* x, const float* bias) {
  const int64_t x_stride = weight.columns + call.x_pad;
  Oracle oracle;
  for (int64_t t = 0; t < call.tokens; ++t)
    for (int64_t r = 0; r < weight.rows; ++r) {
      double sum = bias ? bias[r] : 0.0, magnitude = std::fabs(sum), kept = 0;
      for (int64_t k = 0; k < weight.columns; ++k) {
        if (!weight.mask[r * weight.columns + k]) continue;
        const float v = x[t * x_stride + k];
        const double product =
            double(weight.dense[r * weight.columns + k]) * (call.rounds_to_bf16 ? from_bf16(to_bf16(v)) : v);
        sum += product;
        magnitude += std::fabs(product);
        kept += 1;
      }
      double tolerance = (kept + 4) * kRoundoff * magnitude;
      if (call.activation != Activation::none && call.activation != Activation::relu)
        tolerance = 1.13 * tolerance + 4e-7 * std::fabs(sum);
      oracle.y.push_back(activate(sum, call.activation));
      oracle.tolerance.push_back(tolerance);
    }
  return oracle;
}

// The last row ends with the buffer, so that AddressSanitizer sees any access behind it.
std::vector<float> rows_with_gaps(int64_t rows, int64_t columns, int64_t pad, float fill) {
  return std::vector<float>(rows ? static_cast<size_t>(rows * (columns + pad) - pad) : 0, fill);
}

// What is wrong with y, or an empty string.
std::string fault_in(const std::vector<float>& y, const Oracle& oracle, const Weight& weight,
                     const Call& call, double* worst) {
  const int64_t stride = weight.rows + call.y_pad;
  for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
    const int64_t t = i / stride, r = i % stride;
    if (r >= weight.rows) {
      if (std::memcmp(&y[i], &kCanary, sizeof kCanary))
        return "wrote behind row " + std::to_string(t) + " of y";
      continue;
    }
    const double error = std::fabs(y[i] - oracle.y[t * weight.rows + r]);
    const double tolerance = oracle.tolerance[t * weight.rows + r];
    if (!(error <= tolerance))
      return "y[" + std::to_string(t) + "][" + std::to_string(r) + "] = " + std::to_string(y[i]) +
             ", expected " + std::to_string(oracle.y[t * weight.rows + r]) + " within " +
             std::to_string(tolerance);
    if (tolerance > 0.0 && error / tolerance > *worst) *worst = error / tolerance;
  }
  return "";
}

std::string describe(const Weight& weight, const Call& call) {
  return "rows " + std::to_string(weight.rows) + " columns " + std::to_string(weight.columns) +
         " kept " + std::to_string(weight.kept.size()) + " tokens " + std::to_string(call.tokens) +
         " pads " + std::to_string(call.x_pad) + " " + std::to_string(call.y_pad) + " bias " +
         std::to_string(call.has_bias) + " act " + std::to_string(static_cast<int>(call.activation));
}

}  // namespace

Weight masked_weight(int64_t rows, int64_t columns, const Mask& keeps, std::mt19937& random) {
  const int64_t stride = (columns + 7) / 8;
  Weight weight{rows, columns, {}, {}, {}, {}};
  weight.dense.assign(static_cast<size_t>(rows * columns), 0.0f);
  weight.mask.assign(static_cast<size_t>(rows * columns), 0);
  weight.mask_bits.assign(static_cast<size_t>(rows * stride), 0);
  std::normal_distribution<float> normal;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < columns; ++k) {
      if (!keeps(r, k)) continue;
      const float value = normal(random);
      weight.dense[r * columns + k] = value;
      weight.mask[r * columns + k] = 1;
      weight.mask_bits[r * stride + k / 8] |= static_cast<uint8_t>(1u << (k % 8));
      weight.kept.push_back(value);
    }
  return weight;
}

Weight rounded_to_bf16(Weight weight) {
  for (std::vector<float>* values : {&weight.dense, &weight.kept})
    for (float& v : *values) v = from_bf16(to_bf16(v));
  return weight;
}

Weight random_weight(int64_t rows, int64_t columns, double density, std::mt19937& random) {
  std::uniform_real_distribution<double> uniform;
  return masked_weight(rows, columns, [&](int64_t, int64_t) { return uniform(random) < density; }, random);
}

const std::vector<Isa>& isas_to_check() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> found = available_isas();
#ifdef GOSSAMER_EMULATED_AVX512
    if (found.front() != Isa::avx512) found.insert(found.begin(), Isa::avx512);
#endif
    return found;
  }();
  return isas;
}

Tally::Entry& Tally::entry(const std::string& family, Isa isa) {
  const std::string name = family + " " + isa_name(isa);
  for (Entry& e : entries_)
    if (e.name == name) return e;
  entries_.push_back({name, 0, 0, 0.0});
  return entries_.back();
}

void Tally::pass(const std::string& family, Isa isa, double error_of_tolerance) {
  Entry& e = entry(family, isa);
  e.calls += 1;
  if (error_of_tolerance > e.worst) e.worst = error_of_tolerance;
}

void Tally::fail(const std::string& family, Isa isa, const std::string& what) {
  Entry& e = entry(family, isa);
  e.calls += 1;
  e.failures += 1;
  std::printf("FAIL %s: %s\n", e.name.c_str(), what.c_str());
}

int64_t Tally::failures() const {
  int64_t sum = 0;
  for (const Entry& e : entries_) sum += e.failures;
  return sum;
}

bool Tally::print() const {
  bool ok = !entries_.empty();
  for (const Entry& e : entries_) {
    std::printf("%-20s %lld calls, %lld failed, worst error %.2f of its tolerance\n", e.name.c_str(),
                (long long)e.calls, (long long)e.failures, e.worst);
    ok &= e.failures == 0;
  }
  return ok;
}

Moved moved_by(const std::vector<double>& wanted, std::mt19937& random, bool in_int8,
               const std::function<std::vector<double>(Roundings&)>& oracle) {
  Moved moved = {0.0, 0.0};
  for (int draw = 0; draw < 4; ++draw) {
    Roundings rounding(&random, in_int8);
    const std::vector<double> y = oracle(rounding);
    double squares = 0.0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double difference = std::fabs(y[i] - wanted[i]);
      moved.most = std::max(moved.most, difference);
      squares += difference * difference;
    }
    if (!y.empty()) moved.typical = std::max(moved.typical, std::sqrt(squares / double(y.size())));
  }
  return moved;
}

Call random_call(std::mt19937& random) {
  static const int64_t tokens[] = {0, 1, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 100};
  static const float scales[] = {1.0f, 0.1f, 30.0f};  // 30 reaches the tails of the activations
  const auto draw = [&](size_t count) { return static_cast<int64_t>(random() % count); };
  Call call{};
  call.tokens = tokens[draw(13)];
  call.x_pad = draw(2) ? draw(20) : 0;
  call.y_pad = draw(2) ? draw(20) : 0;
  call.has_bias = draw(2) == 1;
  call.activation = static_cast<Activation>(draw(4));
  call.scale = scales[draw(3)];
  return call;
}

Draw random_draw(std::mt19937& random) {
  static const double densities[] = {0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 0.9, 1.0};
  const auto size = [&] { return static_cast<int64_t>(random() % (8u << random() % 5)); };
  return {size(), size(), densities[random() % 8]};
}

void check_packed(const std::string& family, Isa isa, const Weight& weight, const PackedWeight& packed,
                  const Call& call, unsigned seed, Tally& tally) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, call.scale);
  const int64_t x_stride = weight.columns + call.x_pad, y_stride = weight.rows + call.y_pad;
  // NaN in the gaps: a kernel that lets one in spoils its result.
  std::vector<float> x = rows_with_gaps(call.tokens, weight.columns, call.x_pad,
                                        std::numeric_limits<float>::quiet_NaN());
  for (int64_t t = 0; t < call.tokens; ++t)
    for (int64_t k = 0; k < weight.columns; ++k) x[t * x_stride + k] = normal(random);
  std::vector<float> bias(static_cast<size_t>(weight.rows));
  for (float& v : bias) v = normal(random);
  const float* bias_or_null = call.has_bias ? bias.data() : nullptr;
  const Oracle oracle = oracle_of(weight, call, x.data(), bias_or_null);
  std::vector<float> y[2];
  for (int threads = 1; threads <= 2; ++threads) {
    std::vector<float>& out = y[threads - 1];
    out = rows_with_gaps(call.tokens, weight.rows, call.y_pad, kCanary);
    packed.run({x.data(), call.tokens, x_stride, out.data(), y_stride, bias_or_null, call.activation},
               threads);
  }
  double worst = 0.0;
  std::string fault = fault_in(y[0], oracle, weight, call, &worst);
  if (fault.empty() && !y[0].empty() &&
      std::memcmp(y[0].data(), y[1].data(), y[0].size() * sizeof(float)))
    fault = "2 threads and 1 thread differ";
  if (fault.empty())
    tally.pass(family, isa, worst);
  else
    tally.fail(family, isa, describe(weight, call) + ": " + fault);
}

void check_unpack(const std::string& family, Isa isa, const Weight& weight, const PackedWeight& packed,
                  Tally& tally) {
  std::vector<float> kept(weight.kept.size(), kCanary);
  std::vector<uint8_t> mask_bits(weight.mask_bits.size(), 0);
  packed.unpack(kept.data(), mask_bits.data());
  if (packed.kept != static_cast<int64_t>(kept.size()) || kept != weight.kept ||
      mask_bits != weight.mask_bits)
    tally.fail(family, isa, "unpack: rows " + std::to_string(weight.rows) + " columns " +
                                std::to_string(weight.columns));
}

}  // namespace gossamer::check
