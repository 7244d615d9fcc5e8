// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "gossamer/few_layout.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

const char* const kFormNames[] = {"bitmask", "indexed", "nm"};
const char* const kTypeNames[] = {"fp32", "bf16", "int8", "int4"};

// What a lossy layout stands for: its own values, read by the reference from unit vectors.
Weight as_stored(const Weight& weight, const FewOptions& options) {
  Weight stored = weight;
  if (options.type == ValueType::fp32 || weight.columns == 0 || weight.rows == 0) return stored;
  const auto packed = pack_few_weight(weight.view(), options, Isa::reference);
  std::vector<float> x(static_cast<size_t>(weight.columns), 0.0f), y(static_cast<size_t>(weight.rows));
  for (int64_t k = 0; k < weight.columns; ++k) {
    x[k] = 1.0f;
    packed->run({x.data(), 1, weight.columns, y.data(), weight.rows, nullptr, Activation::none}, 1);
    x[k] = 0.0f;
    for (int64_t r = 0; r < weight.rows; ++r) stored.dense[r * weight.columns + k] = y[r];
  }
  return stored;
}

// Rounding of a value is at most half a step: 2^-9 of it (bf16), of the largest in its row / 127, or
// of the largest / 7 with a scale off by 2^-9 (int4, whose largest value may be cut by as much).
double rounding_bound(ValueType type, double value, double largest) {
  switch (type) {
    case ValueType::fp32: return 0.0;
    case ValueType::bf16: return std::ldexp(std::fabs(value), -8);
    case ValueType::int8: return largest / 127 * 0.501;
    case ValueType::int4: return largest / 7 * 0.51 + largest / 256;
  }
  return 0.0;
}

void check_rounding(const std::string& family, const Weight& weight, const Weight& stored, ValueType type,
                    Tally& tally) {
  for (int64_t r = 0; r < weight.rows; ++r) {
    double largest = 0.0;
    for (int64_t k = 0; k < weight.columns; ++k)
      largest = std::max(largest, std::fabs(double(weight.dense[r * weight.columns + k])));
    for (int64_t i = r * weight.columns; i < (r + 1) * weight.columns; ++i)
      if (std::fabs(double(stored.dense[i]) - weight.dense[i]) > rounding_bound(type, weight.dense[i], largest))
        return tally.fail(family, Isa::reference, "value " + std::to_string(weight.dense[i]) + " became " +
                                                      std::to_string(stored.dense[i]));
  }
}

void check_weight(const Weight& weight, const FewOptions& base, std::mt19937& random, Tally& tally) {
  for (int type = 0; type < 4; ++type) {
    FewOptions options = base;
    options.type = static_cast<ValueType>(type);
    const std::string family =
        std::string("few/") + kFormNames[static_cast<int>(options.form)] + "-" + kTypeNames[type];
    const Weight stored = as_stored(weight, options);
    check_rounding(family, weight, stored, options.type, tally);
    Call call = random_call(random);
    call.tokens = static_cast<int64_t>(random() % 20);
    const unsigned seed = random();
    for (const Isa isa : isas_to_check()) {
      const auto packed = pack_few_weight(weight.view(), options, isa);
      if (packed->is_lossless()) check_unpack(family, isa, weight, *packed, tally);
      check_packed(family, isa, stored, *packed, call, seed, tally);
    }
  }
}

// A mask that keeps n of every m columns of a row.
Weight nm_weight(int64_t rows, int64_t columns, int64_t n, int64_t m, std::mt19937& random) {
  std::vector<int64_t> left(static_cast<size_t>(rows + 1), 0);
  const auto keeps = [&](int64_t row, int64_t column) {
    if (column % m == 0) left[row] = n;
    const bool keep = left[row] > 0 && static_cast<int64_t>(random() % m) < n;
    const bool must = left[row] >= m - column % m;  // else the group would stay short
    left[row] -= keep || must;
    return keep || must;
  };
  return masked_weight(rows, columns, keeps, random);
}

}  // namespace

void check_few(Tally& tally) {
  const int64_t all_rows[] = {0, 1, 9, 16, 33};
  // 300: indices beyond what a byte can say.
  const int64_t all_columns[] = {0, 1, 8, 31, 33, 100, 300};
  const double densities[] = {0.0, 0.01, 0.1, 0.5, 1.0};
  std::mt19937 random(20240608);
  for (const int64_t rows : all_rows)
    for (const int64_t columns : all_columns)
      for (const double density : densities) {
        const Weight weight = random_weight(rows, columns, density, random);
        for (const FewForm form : {FewForm::bitmask, FewForm::indexed})
          check_weight(weight, {form, ValueType::fp32, 32, 0, 0}, random, tally);
      }
  const int64_t patterns[][2] = {{1, 1}, {2, 4}, {1, 4}, {2, 6}, {2, 8}, {7, 8}, {2, 16}, {3, 10}, {4, 32}, {9, 20}};
  for (const auto& [n, m] : patterns)
    for (const int64_t rows : all_rows)
      for (const int64_t groups : {0, 1, 3, 17}) {
        const int64_t columns = groups * m - (groups && m > 1 ? static_cast<int64_t>(random() % 2) : 0);
        const Weight weight = nm_weight(rows, columns, n, m, random);
        check_weight(weight, {FewForm::nm, ValueType::fp32, 32, n, m}, random, tally);
      }
}

void fuzz_few(std::mt19937& random, Tally& tally) {
  const Draw draw = random_draw(random);
  const int form = random() % 3;
  if (form == 2) {
    const int64_t m = 1 + random() % 32, n = 1 + random() % m;
    const Weight weight = nm_weight(draw.rows, draw.columns, n, m, random);
    check_weight(weight, {FewForm::nm, ValueType::fp32, 32, n, m}, random, tally);
  } else {
    const Weight weight = random_weight(draw.rows, draw.columns, draw.density, random);
    check_weight(weight, {form ? FewForm::indexed : FewForm::bitmask, ValueType::fp32, 32, 0, 0}, random, tally);
  }
}

}  // namespace gossamer::check
