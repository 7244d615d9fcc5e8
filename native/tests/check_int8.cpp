// SPDX-License-Identifier: Apache-2.0
// The int8 kernels against the reference: the same bits, and nothing written outside y. The
// reference itself is held against float64 within the error that quantisation allows.
#include <cmath>
#include <cstring>
#include <limits>

#include "dense/gemm.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/int8_window.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

constexpr float kCanary = -12345.75f;

struct Set {
  const char* name;
  Isa isa;
  const Int8Kernels& kernels;
};

std::vector<Set> sets_to_check() {
  std::vector<Set> sets;
  for (const Isa isa : isas_to_check()) sets.push_back({"int8", isa, int8_kernels(isa)});
#ifdef GOSSAMER_EMULATED_AVX512
  sets.push_back({"int8 vnni", Isa::avx512, avx512vnni::int8_kernels});
#endif
  return sets;
}

struct Input {
  std::vector<float> x, bias;
  int64_t x_stride, y_stride;
};

Input random_input(const Weight& weight, const Call& call, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, call.scale);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Input in{{}, {}, weight.columns + call.x_pad, weight.rows + call.y_pad};
  in.x.assign(call.tokens * in.x_stride, nan);  // NaN in the gaps: one that gets in spoils its row
  for (int64_t t = 0; t < call.tokens; ++t)
    for (int64_t k = 0; k < weight.columns; ++k) in.x[t * in.x_stride + k] = normal(random);
  if (call.tokens > 2 && weight.columns) {
    in.x[in.x_stride + weight.columns / 2] = random() % 2 ? nan : -std::numeric_limits<float>::infinity();
    for (int64_t k = 0; k < weight.columns; ++k) in.x[2 * in.x_stride + k] = 0.0f;
  }
  in.bias.resize(weight.rows);
  for (float& v : in.bias) v = normal(random);
  return in;
}

std::vector<float> run(const PackedWeight& packed, const Input& in, const Call& call, int threads) {
  std::vector<float> y(call.tokens * in.y_stride, kCanary);
  packed.run({in.x.data(), call.tokens, in.x_stride, y.data(), in.y_stride,
              call.has_bias ? in.bias.data() : nullptr, call.activation},
             threads);
  return y;
}

// Half a step of both scales, for every product; NaN rows where x is not finite.
std::string fault_of_reference(const Weight& weight, const Input& in, const Call& call, int bits,
                               const std::vector<float>& y, double* worst) {
  for (int64_t t = 0; t < call.tokens; ++t) {
    const float* x = in.x.data() + t * in.x_stride;
    double top = 0.0;
    bool is_finite = true;
    for (int64_t k = 0; k < weight.columns; ++k) {
      top = std::fmax(top, std::fabs(x[k]));
      is_finite &= std::isfinite(x[k]);
    }
    const double x_step = top / activation_limit(bits) / 2;
    for (int64_t r = 0; r < weight.rows; ++r) {
      const float found = y[t * in.y_stride + r];
      if (!is_finite) {
        if (!std::isnan(found)) return "a token that is not finite gave a number";
        continue;
      }
      const float* w = weight.dense.data() + r * weight.columns;
      double sum = call.has_bias ? in.bias[r] : 0.0, w_top = 0.0, bound = 0.0, size = std::fabs(sum);
      for (int64_t k = 0; k < weight.columns; ++k) w_top = std::fmax(w_top, std::fabs(w[k]));
      for (int64_t k = 0; k < weight.columns; ++k) {
        if (!weight.mask[r * weight.columns + k]) continue;
        sum += double(w[k]) * x[k];
        size += std::fabs(double(w[k]) * x[k]);
        bound += std::fabs(w[k]) * x_step + (std::fabs(x[k]) + x_step) * w_top / 254;
      }
      bound = bound * 1.001 + size * 1e-6 + 1e-30;
      const double error = std::fabs(found - sum) / bound;
      if (!(error <= 1.0)) return "error " + std::to_string(error) + " of the bound";
      *worst = std::fmax(*worst, error);
    }
  }
  return "";
}

// The same bits; where polynomials stand in for erf and exp, a few of their errors.
bool agree(const std::vector<float>& found, const std::vector<float>& wanted, Activation activation) {
  const bool is_exact = activation == Activation::none || activation == Activation::relu;
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(wanted[i]) != std::isnan(found[i])) return false;
    const float error = std::fabs(found[i] - wanted[i]);
    if (error > (is_exact ? 0.0f : 4e-6f * (1.0f + std::fabs(wanted[i])))) return false;
  }
  return true;
}

// One call of a weight in a random form, on every instruction set.
void check_weight(const Weight& weight, std::mt19937& random, Tally& tally) {
  Call call = random_call(random);
  const Input in = random_input(weight, call, random);
  const int bits = random() % 2 ? 7 : 8;
  const DwordForm form = random() % 2 ? DwordForm::panel : DwordForm::neighbours;
  const float scale = random() % 4 ? 0.0f : 0.02f;
  const Int8Options options = {form, bits, scale};
  const Int8Weight specified(weight.view(), options, reference::int8_kernels);
  const std::vector<float> wanted = run(specified, in, call, 1);
  const std::string where = "rows " + std::to_string(weight.rows) + " columns " + std::to_string(weight.columns) +
                            " tokens " + std::to_string(call.tokens) + " bits " + std::to_string(bits) +
                            (form == DwordForm::panel ? " panel" : " quad");
  if (scale == 0.0f) {
    Call linear = call;
    linear.activation = Activation::none;
    double worst = 0.0;
    const std::string fault =
        fault_of_reference(weight, in, linear, bits, run(specified, in, linear, 1), &worst);
    fault.empty() ? tally.pass("int8", Isa::reference, worst)
                  : tally.fail("int8", Isa::reference, where + ": " + fault);
  }
  for (const Set& set : sets_to_check()) {
    const Int8Weight packed(weight.view(), options, set.kernels);
    const std::vector<float> one = run(packed, in, call, 1), two = run(packed, in, call, 2);
    const bool same = one.empty() || !std::memcmp(one.data(), two.data(), one.size() * sizeof(float));
    if (packed.kept != static_cast<int64_t>(weight.kept.size()))
      tally.fail(set.name, set.isa, where + ": lost weights");
    else if (!agree(one, wanted, call.activation))
      tally.fail(set.name, set.isa, where + ": differs from the reference");
    else if (!same)
      tally.fail(set.name, set.isa, where + ": 2 threads and 1 thread differ");
    else
      tally.pass(set.name, set.isa, 0.0);
  }
}

// A layout of rows that are lanes, on every instruction set: the bits of the reference of the other layouts.
using Pack = std::unique_ptr<PackedWeight> (*)(const KeptWeight&, Isa);
template <Pack pack>
void check_lanes_of_rows(const Weight& weight, std::mt19937& random, Tally& tally) {
  const std::string family = pack == pack_gemm_weight ? "int8 dense" : "int8 window";
  const Call call = random_call(random);
  const Input in = random_input(weight, call, random);
  const std::string where = "rows " + std::to_string(weight.rows) + " columns " + std::to_string(weight.columns) +
                            " tokens " + std::to_string(call.tokens);
  for (const Isa isa : isas_to_check()) {
    const Int8Options options = {DwordForm::neighbours, int8_kernels(isa).activation_bits, 0.0f};
    const std::vector<float> wanted = run(Int8Weight(weight.view(), options, reference::int8_kernels), in, call, 1);
    const auto packed = pack(weight.view(), isa);
    const std::vector<float> one = run(*packed, in, call, 1), two = run(*packed, in, call, 2);
    if (packed->kept != static_cast<int64_t>(weight.kept.size()))
      tally.fail(family, isa, where + ": lost weights");
    else if (!agree(one, wanted, call.activation))
      tally.fail(family, isa, where + ": differs from the reference");
    else if (!one.empty() && std::memcmp(one.data(), two.data(), one.size() * sizeof(float)))
      tally.fail(family, isa, where + ": 2 threads and 1 thread differ");
    else
      tally.pass(family, isa, 0.0);
  }
}

}  // namespace

void check_int8(Tally& tally) {
  const int64_t all_rows[] = {0, 1, 17, 64, 129, 513};
  const int64_t all_columns[] = {0, 1, 4, 7, 9, 96, 385, 777};
  const double densities[] = {0.0, 0.05, 0.5, 1.0};
  std::mt19937 random(20240609);
  for (const int64_t rows : all_rows)
    for (const int64_t columns : all_columns)
      for (const double density : densities)
        for (const auto check : {check_weight, check_lanes_of_rows<pack_gemm_weight>, check_lanes_of_rows<pack_window_weight>})
          check(random_weight(rows, columns, density, random), random, tally);
}

void fuzz_int8(std::mt19937& random, Tally& tally) {
  const Draw draw = random_draw(random);
  const auto rows = random() % 2 ? check_lanes_of_rows<pack_gemm_weight> : check_lanes_of_rows<pack_window_weight>;
  const auto check = random() % 2 ? check_weight : rows;
  check(random_weight(draw.rows, draw.columns, draw.density, random), random, tally);
}

}  // namespace gossamer::check
