// SPDX-License-Identifier: Apache-2.0
// Tall products against double, one thread against two: sizes around those of tiles, panels and blocks.
#include <cmath>

#include "harness.hpp"
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

}  // namespace

void check_tall(Tally& tally) {
  std::mt19937 random(1);
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
}

}  // namespace gossamer::check
