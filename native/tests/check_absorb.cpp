// SPDX-License-Identifier: Apache-2.0
// Gradients added to a sum and measured against double, one thread against two, and the bits of every set.
#include <cmath>
#include <limits>

#include "gossamer/absorb.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

struct Outcome {
  std::vector<float> held, fresh, scores;

  bool operator==(const Outcome& other) const {
    return held == other.held && fresh == other.fresh && scores == other.scores;
  }
};

Outcome absorbed(const std::vector<float>& gradient, const std::vector<float>& held, int64_t blocks, int64_t size,
                 Isa isa, int threads) {
  // Numbers behind the last block must stay.
  Outcome out{held, std::vector<float>(blocks + 1, 7.0f), std::vector<float>(blocks + 1, 7.0f)};
  absorb({blocks, size, gradient.data(), out.held.data(), out.fresh.data(), out.scores.data()}, isa, threads);
  return out;
}

// How far a number is from its oracle, as a part of what rounding allows.
double off(double found, double expected, double allowed) { return std::fabs(found - expected) / (allowed + 1e-37); }

void check_one(int64_t blocks, int64_t size, bool spoiled, std::mt19937& random, Tally& tally) {
  std::normal_distribution<float> normal;
  std::vector<float> gradient(blocks * size), held(blocks * size);
  for (float& v : gradient) v = normal(random);
  for (float& v : held) v = 3.0f * normal(random);
  const int64_t together = absorbed_together(size), bad = spoiled && blocks ? random() % blocks : -1;
  if (bad >= 0)
    gradient[bad * size + random() % size] =
        random() % 2 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
  const Outcome first = absorbed(gradient, held, blocks, size, Isa::reference, 1);
  const std::string name = "absorb " + std::to_string(blocks) + "x" + std::to_string(size);
  for (const Isa isa : isas_to_check()) {
    const Outcome found = absorbed(gradient, held, blocks, size, isa, 1);
    if (!(found == first) || !(absorbed(gradient, held, blocks, size, isa, 2) == first)) {
      tally.fail("absorb", isa, name + ": bits differ between sets or threads");
      continue;
    }
    double worst = off(found.fresh[blocks], 7.0, 0.0) + off(found.scores[blocks], 7.0, 0.0);
    for (int64_t block = 0; block < blocks; ++block) {
      const bool kept = bad >= 0 && block / together == bad / together;
      double fresh = 0.0, score = 0.0;
      for (int64_t i = block * size; i < (block + 1) * size; ++i) {
        const double g = gradient[i], sum = kept ? held[i] : static_cast<float>(held[i] + gradient[i]);
        if (found.held[i] != sum) worst = 1e9;
        fresh += g * g / size;
        score += sum * sum / size;
      }
      if (block == bad) {
        if (std::isfinite(found.fresh[block]) || std::isfinite(found.scores[block])) worst = 1e9;
        continue;
      }
      worst = std::fmax(worst, off(found.fresh[block], fresh, 2e-6 * fresh));
      worst = std::fmax(worst, off(found.scores[block], kept ? fresh : score, 2e-6 * (kept ? fresh : score)));
    }
    if (worst > 1.0)
      tally.fail("absorb", isa, name + ": off by " + std::to_string(worst) + " of what rounding allows");
    else
      tally.pass("absorb", isa, worst);
  }
}

}  // namespace

void check_absorb(Tally& tally) {
  std::mt19937 random(1);
  for (const int64_t blocks : {0, 1, 2, 17, 67})
    for (const int64_t size : {1, 7, 31, 32, 33, 1000, 2047, 2049, 20000})
      for (const bool spoiled : {false, true}) check_one(blocks, size, spoiled, random, tally);
}

void fuzz_absorb(std::mt19937& random, Tally& tally) {
  const int64_t size = 1 + (random() % 2 ? random() % 70 : random() % 5000);
  check_one(random() % 40, size, random() % 3 == 0, random, tally);
}

}  // namespace gossamer::check
