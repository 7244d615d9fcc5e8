// SPDX-License-Identifier: Apache-2.0
// Checks every kernel set this CPU can run against a float64 oracle: pack, unpack, product, bias,
// activation, all remainders of rows, columns and tokens, strides, and 1 against 2 threads.
//
//   make native-test                             with AddressSanitizer and UBSan
//   native/tests/build_check.sh plain DIR        with the flags of the extension module
//   native/tests/build_check.sh sanitize DIR     with -fsanitize=address,undefined
//   native/tests/build_check.sh simde DIR        AVX-512 source on a CPU without it (libsimde-dev)
//   native/tests/run_in_bochs.sh DIR             AVX-512 machine code on a CPU without it (bochs)
//
// build_check.sh leaves DIR/check_kernels, which prints one line per set and exits with 1 on a
// failure. It is a script because instruction sets need flags per file; the reference alone is one
// command:
//   g++ -std=gnu++17 -O3 -fopenmp -Inative/include -Inative/src native/src/*.cpp
//     native/src/reference/*.cpp native/tests/check_kernels.cpp -o check_kernels
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/panel_layout.hpp"

namespace {

using gossamer::Activation;
using gossamer::Isa;

constexpr float kCanary = -12345.75f;
constexpr double kRoundoff = 1.0 / (1 << 24);  // of one fp32 operation

struct Weight {
  int64_t rows, columns;
  std::vector<float> dense, kept;  // dense holds zeros where the mask is off
  std::vector<uint8_t> mask_bits, mask;
};

struct Call {
  int64_t tokens, x_pad, y_pad;
  bool has_bias;
  Activation activation;
  float scale;
};

struct Oracle {
  std::vector<double> y, tolerance;  // [tokens][rows]
};

struct Tally {
  int64_t calls = 0, failures = 0;
  double worst = 0.0;  // error as a fraction of its tolerance
};

Weight random_weight(int64_t rows, int64_t columns, double density, std::mt19937& random) {
  const int64_t stride = (columns + 7) / 8;
  Weight weight{rows, columns, {}, {}, {}, {}};
  weight.dense.assign(static_cast<size_t>(rows * columns), 0.0f);
  weight.mask.assign(static_cast<size_t>(rows * columns), 0);
  weight.mask_bits.assign(static_cast<size_t>(rows * stride), 0);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> uniform;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < columns; ++k) {
      if (uniform(random) >= density) continue;
      const float value = normal(random);
      weight.dense[r * columns + k] = value;
      weight.mask[r * columns + k] = 1;
      weight.mask_bits[r * stride + k / 8] |= static_cast<uint8_t>(1u << (k % 8));
      weight.kept.push_back(value);
    }
  return weight;
}

double activate(double v, Activation activation) {
  switch (activation) {
    case Activation::relu: return v > 0.0 ? v : 0.0;
    case Activation::gelu: return 0.5 * v * std::erfc(-v * std::sqrt(0.5));
    case Activation::silu: return v / (1.0 + std::exp(-v));
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
        const double product = double(weight.dense[r * weight.columns + k]) * x[t * x_stride + k];
        sum += product;
        magnitude += std::fabs(product);
        kept += 1;
      }
      double tolerance = (kept + 4) * kRoundoff * magnitude;
      if (call.activation == Activation::gelu || call.activation == Activation::silu)
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

void report(Isa isa, const Weight& weight, const Call& call, const char* what) {
  std::printf("FAIL %s: rows %lld columns %lld kept %zu tokens %lld pads %lld %lld bias %d act %d: "
              "%s\n", gossamer::isa_name(isa), (long long)weight.rows, (long long)weight.columns, weight.kept.size(),
              (long long)call.tokens, (long long)call.x_pad, (long long)call.y_pad, call.has_bias,
              static_cast<int>(call.activation), what);
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

void check_call(const Weight& weight, const gossamer::PanelLayout& layout, const Call& call,
                const std::vector<Isa>& sets, std::vector<Tally>& tallies,
                std::mt19937& random) {
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
  for (size_t s = 0; s < sets.size(); ++s) {
    std::vector<float> y[2];
    for (int threads = 1; threads <= 2; ++threads) {
      std::vector<float>& out = y[threads - 1];
      out = rows_with_gaps(call.tokens, weight.rows, call.y_pad, kCanary);
      gossamer::run_panel(layout,
                          {x.data(), call.tokens, x_stride, out.data(), y_stride, bias_or_null,
                           call.activation},
                          gossamer::panel_kernels(sets[s]), threads);
    }
    std::string fault = fault_in(y[0], oracle, weight, call, &tallies[s].worst);
    if (fault.empty() && !y[0].empty() &&
        std::memcmp(y[0].data(), y[1].data(), y[0].size() * sizeof(float)))
      fault = "2 threads and 1 thread differ";
    if (!fault.empty()) report(sets[s], weight, call, fault.c_str());
    tallies[s].calls += 1;
    tallies[s].failures += !fault.empty();
  }
}

bool unpacks_to_itself(const Weight& weight, const gossamer::PanelLayout& layout) {
  std::vector<float> kept(weight.kept.size(), kCanary);
  std::vector<uint8_t> mask_bits(weight.mask_bits.size(), 0);
  gossamer::unpack_panel(layout, kept.data(), mask_bits.data());
  return layout.kept == static_cast<int64_t>(kept.size()) && kept == weight.kept &&
         mask_bits == weight.mask_bits;
}

std::vector<Isa> kernels_to_check() {
  std::vector<Isa> sets = gossamer::available_isas();
#ifdef GOSSAMER_EMULATED_AVX512
  if (sets.front() != Isa::avx512) sets.insert(sets.begin(), Isa::avx512);
#endif
  return sets;
}

}  // namespace

int main() {
  const int64_t all_rows[] = {0, 1, 2, 15, 16, 17, 31, 33, 128, 129, 513};
  const int64_t all_columns[] = {0, 1, 7, 8, 9, 95, 96, 97, 191, 192, 193, 257, 300};
  const double densities[] = {0.0, 0.03, 0.1, 0.5, 1.0};
  const int64_t all_tokens[] = {0, 1, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 100};
  const float scales[] = {1.0f, 0.1f, 30.0f};  // 30 reaches the tails of the activations
  const std::vector<Isa> sets = kernels_to_check();
  std::vector<Tally> tallies(sets.size());
  std::mt19937 random(20240607);
  const auto draw = [&](size_t count) { return random() % count; };
  int64_t unpack_failures = 0;
  for (const int64_t rows : all_rows)
    for (const int64_t columns : all_columns)
      for (const double density : densities) {
        const Weight weight = random_weight(rows, columns, density, random);
        const gossamer::PanelLayout layout =
            gossamer::pack_panel({weight.kept.data(), weight.mask_bits.data(), rows, columns},
                                 gossamer::panel_kernels(sets[0]).shapes);
        if (!unpacks_to_itself(weight, layout)) {
          std::printf("FAIL unpack: rows %lld columns %lld density %g\n", (long long)rows,
                      (long long)columns, density);
          unpack_failures += 1;
        }
        // Two random calls per weight: every call for every weight would take minutes.
        for (int i = 0; i < 2; ++i) {
          const int64_t x_pad = draw(2) ? draw(20) : 0, y_pad = draw(2) ? draw(20) : 0;
          check_call(weight, layout,
                     {all_tokens[draw(13)], x_pad, y_pad, draw(2) == 1,
                      static_cast<Activation>(draw(4)), scales[draw(3)]},
                     sets, tallies, random);
        }
      }
  bool failed = unpack_failures > 0;
  for (size_t s = 0; s < sets.size(); ++s) {
    std::printf("%-9s %lld calls, %lld failed, worst error %.2f of its tolerance\n", gossamer::isa_name(sets[s]),
                (long long)tallies[s].calls, (long long)tallies[s].failures, tallies[s].worst);
    failed |= tallies[s].failures > 0 || tallies[s].calls == 0;
  }
  std::printf(failed ? "check_kernels: FAILED\n" : "check_kernels: ok\n");
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
