// SPDX-License-Identifier: Apache-2.0
// Tall products against double, one thread against two: sizes around those of tiles, panels and blocks.
#include <cmath>

#include "gossamer/bf16.hpp"
#include "harness.hpp"
#include "tall/grouped.hpp"
#include "tall/tall.hpp"

namespace gossamer::check {
namespace {

std::vector<float> normals(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

// Sums of products, and of their sizes: what rounding may change.
struct Expected {
  std::vector<double> sum, size;
  explicit Expected(int64_t count) : sum(static_cast<size_t>(count)), size(sum.size()) {}
  void add(int64_t at, double v) {
    sum[static_cast<size_t>(at)] += v;
    size[static_cast<size_t>(at)] += std::fabs(v);
  }
  double error(const std::vector<float>& found) const {
    double worst = 0.0;
    for (size_t i = 0; i < sum.size(); ++i)
      worst = std::fmax(worst, std::fabs(found[i] - sum[i]) / (1e-6 * (size[i] + 1.0)));
    return worst;
  }
};

void report(const char* what, Isa isa, bool same, double error, Tally& tally) {
  if (!same)
    tally.fail("tall", isa, std::string(what) + ": bits differ between threads");
  else if (!(error <= 1.0))
    tally.fail("tall", isa, std::string(what) + ": off by " + std::to_string(error) + " of what rounding allows");
  else
    tally.pass("tall", isa, error);
}

void check_one(int64_t rows, int64_t inner, int64_t width, bool turned, std::mt19937& random, Tally& tally) {
  const std::vector<float> x = normals(rows * inner, random), w = normals(inner * width, random);
  const std::vector<float> bias = normals(width, random), g = normals(rows * width, random);
  Expected y(rows * width), c(width * inner), sums(width);
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t j = 0; j < width; ++j) {
      y.add(n * width + j, bias[static_cast<size_t>(j)]);
      sums.add(j, g[static_cast<size_t>(n * width + j)]);
      for (int64_t k = 0; k < inner; ++k) {
        const double in = x[static_cast<size_t>(n * inner + k)];
        y.add(n * width + j, in * w[static_cast<size_t>(turned ? j * inner + k : k * width + j)]);
        c.add(j * inner + k, in * g[static_cast<size_t>(n * width + j)]);
      }
    }
  for (const Isa isa : isas_to_check()) {
    std::vector<float> found[2], outer[2], columns[2];
    for (int i = 0; i < 2; ++i) {
      found[i].assign(y.sum.size(), 7.0f), outer[i].assign(c.sum.size(), 7.0f), columns[i].assign(sums.sum.size(), 7.0f);
      tall_product(x.data(), w.data(), bias.data(), found[i].data(), rows, inner, width, turned, isa, i + 1);
      tall_outer({g.data(), x.data(), outer[i].data(), columns[i].data(), rows, width, inner}, isa, i + 1);
    }
    report("product", isa, found[0] == found[1], y.error(found[0]), tally);
    report("outer", isa, outer[0] == outer[1] && columns[0] == columns[1],
           std::fmax(c.error(outer[0]), sums.error(columns[0])), tally);
  }
}

// Weights of experts as bfloat16 are widened exactly: floats whose lower half is empty must give the same bits.
void check_experts(const std::vector<int64_t>& counts, int64_t outputs, int64_t inner, std::mt19937& random,
                   Tally& tally) {
  const auto experts = static_cast<int64_t>(counts.size());
  std::vector<int64_t> starts(1, 0);
  for (const int64_t count : counts) starts.push_back(starts.back() + count);
  const int64_t tokens = starts.back();
  std::vector<float> w = normals(experts * outputs * inner, random);
  std::vector<uint16_t> halves;
  for (float& v : w) halves.push_back(to_bf16(v)), v = from_bf16(halves.back());
  const std::vector<float> x = normals(tokens * inner, random), g = normals(tokens * outputs, random);
  const std::vector<float> bias = normals(experts * outputs, random);
  Expected y(tokens * outputs), dx(tokens * inner), dw(experts * outputs * inner), sums(experts * outputs);
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t t = starts[static_cast<size_t>(e)]; t < starts[static_cast<size_t>(e + 1)]; ++t)
      for (int64_t o = 0; o < outputs; ++o) {
        y.add(t * outputs + o, bias[static_cast<size_t>(e * outputs + o)]);
        sums.add(e * outputs + o, g[static_cast<size_t>(t * outputs + o)]);
        for (int64_t k = 0; k < inner; ++k) {
          const double own = w[static_cast<size_t>((e * outputs + o) * inner + k)];
          y.add(t * outputs + o, own * x[static_cast<size_t>(t * inner + k)]);
          dw.add((e * outputs + o) * inner + k,
                 static_cast<double>(g[static_cast<size_t>(t * outputs + o)]) * x[static_cast<size_t>(t * inner + k)]);
          dx.add(t * inner + k, own * g[static_cast<size_t>(t * outputs + o)]);
        }
      }
  for (const Isa isa : isas_to_check()) {
    std::vector<float> found[3], back[3];
    for (int i = 0; i < 3; ++i) {
      const Grouped call = {starts.data(), experts, outputs, inner, i == 2 ? nullptr : w.data(),
                            i == 2 ? halves.data() : nullptr};
      found[i].assign(y.sum.size(), 7.0f), back[i].assign(dx.sum.size(), 7.0f);
      grouped_product(call, x.data(), bias.data(), found[i].data(), isa, i + 1);
      grouped_input_gradient(call, g.data(), back[i].data(), isa, i + 1);
    }
    std::vector<float> weights[2], columns[2];  // of idle experts: as they were
    for (int i = 0; i < 2; ++i) {
      weights[i].assign(dw.sum.size(), 0.0f), columns[i].assign(sums.sum.size(), 0.0f);
      const Grouped call = {starts.data(), experts, outputs, inner, nullptr, nullptr};
      grouped_weight_gradient(call, g.data(), x.data(), weights[i].data(), columns[i].data(), isa, i + 1);
    }
    report("experts, weights", isa, weights[0] == weights[1] && columns[0] == columns[1],
           std::fmax(dw.error(weights[0]), sums.error(columns[0])), tally);
    report("experts", isa, found[0] == found[1] && found[0] == found[2], y.error(found[0]), tally);
    report("experts, back", isa, back[0] == back[1] && back[0] == back[2], dx.error(back[0]), tally);
  }
}

}  // namespace

void check_tall(Tally& tally) {
  std::mt19937 random(1);
  for (const int64_t inner : {1, 17, 64, 70, 1300}) {
    check_experts({3, 0, 9}, 33, inner, random, tally);
    check_experts({0, 1, 40}, 200, inner, random, tally);
  }
  check_experts({2, 3}, 0, 5, random, tally);
  check_experts({2, 3}, 5, 0, random, tally);
  check_experts({0, 0}, 5, 7, random, tally);
  for (const int64_t width : {1, 7, 16, 17, 40, 64, 65, 81})
    for (const int64_t rows : {1, 5, 13, 129, 400}) check_one(rows, 33, width, rows % 2, random, tally);
  check_one(0, 5, 3, true, random, tally);
  check_one(5, 0, 3, false, random, tally);
  check_one(200, 300, 150, true, random, tally);
  check_one(200, 1, 700, false, random, tally);
}

void fuzz_tall(std::mt19937& random, Tally& tally) {
  const auto draw = [&](uint64_t most) { return 1 + static_cast<int64_t>(random() % most); };
  check_one(draw(400), draw(200), draw(150), random() % 2, random, tally);
  check_experts({draw(50) - 1, draw(9) - 1, draw(3) - 1}, draw(300), draw(700), random, tally);
}

}  // namespace gossamer::check
