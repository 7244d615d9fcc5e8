// SPDX-License-Identifier: Apache-2.0
// Bytes, scales and finished sums: every instruction set and number of threads gives the bits of the plain loop.
#include <cmath>
#include <cstring>

#include "dense/dense.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

struct Result {
  std::vector<uint8_t> bytes;
  std::vector<float> numbers, scales, y;
  Result(int64_t tokens, int64_t columns, const std::vector<float>& sums)
      : bytes(static_cast<size_t>(tokens * columns)), numbers(static_cast<size_t>((tokens + 1) * columns)), scales(static_cast<size_t>(tokens)),
        y(sums) {}
  bool equals(const Result& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
    };
    return bytes == other.bytes && same(numbers, other.numbers) && same(scales, other.scales) && same(y, other.y);
  }
};

void check_one(int64_t tokens, int64_t columns, int64_t rows, int bits, std::mt19937& random, Tally& tally) {
  std::normal_distribution<float> normal;
  const int64_t stride = columns + 3;
  std::vector<float> x(static_cast<size_t>(tokens * stride)), sums(static_cast<size_t>(tokens * rows));
  std::vector<float> bias(static_cast<size_t>(rows));
  for (auto* values : {&x, &sums, &bias})
    for (float& v : *values) v = normal(random);
  if (tokens > 2 && columns > 0) {
    x[static_cast<size_t>(stride)] = NAN;
    std::fill_n(x.begin() + 2 * stride, columns, 1e-37f);
  }
  Result wanted(tokens, columns, sums);
  const int offset = 1 << (bits - 1);
  const auto limit = static_cast<float>(offset - 1);
  float* const ends = wanted.numbers.data() + tokens * columns;
  if (columns > 0) ends[0] = static_cast<float>(-offset);
  if (columns > 1) ends[1] = limit;
  for (int64_t t = 0; t < tokens; ++t) {
    float top = 0.0f;
    bool finite = true;
    for (int64_t k = 0; k < columns; ++k) {
      const float v = std::fabs(x[static_cast<size_t>(t * stride + k)]);
      finite = finite && std::isfinite(v);
      top = std::fmax(top, v);
    }
    const bool counts = finite && top >= 0x1p-120f;
    wanted.scales[static_cast<size_t>(t)] = finite ? counts ? top / limit : 1.0f : __builtin_nanf("");
    for (int64_t k = 0; k < columns; ++k) {
      const float v = x[static_cast<size_t>(t * stride + k)] * (counts ? limit / top : 0.0f);
      const float q = std::isnan(v) ? -limit : std::nearbyintf(std::fmin(std::fmax(v, -limit), limit));
      wanted.bytes[static_cast<size_t>(t * columns + k)] = static_cast<uint8_t>(static_cast<int>(q) + offset);
      wanted.numbers[static_cast<size_t>(t * columns + k)] = q + 0.0f;
    }
    for (int64_t r = 0; r < rows; ++r) {
      volatile float product = sums[static_cast<size_t>(t * rows + r)] * wanted.scales[static_cast<size_t>(t)];
      wanted.y[static_cast<size_t>(t * rows + r)] = product + bias[static_cast<size_t>(r)];
    }
  }
  for (const Isa isa : isas_to_check())
    for (const int threads : {1, 2}) {
      Result found(tokens, columns, sums);
      tokens_to_bytes({x.data(), tokens, columns, stride, bits, found.bytes.data(), found.numbers.data(),
                       found.scales.data()},
                      isa, threads);
      finish_tokens({found.y.data(), tokens, rows, found.scales.data(), bias.data()}, isa, threads);
      // NaN has many bits.
      for (auto* values : {&found.scales, &found.y, &wanted.y})
        for (float& v : *values)
          if (std::isnan(v)) v = __builtin_nanf("");
      if (found.equals(wanted))
        tally.pass("dense", isa, 0.0);
      else
        tally.fail("dense", isa, std::to_string(tokens) + " tokens, " + std::to_string(columns) + " columns");
    }
}

}  // namespace

void check_dense(Tally& tally) {
  std::mt19937 random(11);
  for (const int64_t columns : {0, 1, 7, 16, 33, 129, 40000})
    for (const int64_t tokens : {0, 1, 3, 5})
      for (const int bits : {7, 8}) check_one(tokens, columns, columns / 2 + 1, bits, random, tally);
}

void fuzz_dense(std::mt19937& random, Tally& tally) {
  const auto draw = [&](int64_t below) { return static_cast<int64_t>(random() % static_cast<uint64_t>(below)); };
  check_one(draw(6), draw(300), draw(300), 7 + static_cast<int>(draw(2)), random, tally);
}

}  // namespace gossamer::check
