// SPDX-License-Identifier: Apache-2.0
// An AdamW step against double, one thread against two, and the bits of every set against the reference.
#include <cmath>
#include <cstring>

#include "gossamer/adamw.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

struct State {
  std::vector<float> weight, grad, mean, square;
  std::vector<uint16_t> high, narrow_grad;
  std::vector<int16_t> low;
  bool split;

  AdamwCall call(float beta1) {
    return {static_cast<int64_t>(mean.size()),
            split ? static_cast<void*>(high.data()) : static_cast<void*>(weight.data()),
            split ? low.data() : nullptr,
            split ? 16 : 0,
            split ? static_cast<const void*>(narrow_grad.data()) : static_cast<const void*>(grad.data()),
            {mean.data(), nullptr, nullptr},
            {square.data(), nullptr, nullptr},
            nullptr,
            nullptr,
            0.999f,
            1.0f - beta1,
            0.99f,
            0.01f,
            0.5f,
            1e-8f,
            -0.01f};
  }
  float master(size_t i) const {
    if (!split) return weight[i];
    const uint32_t bits = (static_cast<uint32_t>(high[i]) << 16) + static_cast<uint32_t>(static_cast<int32_t>(low[i]));
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  bool operator==(const State& other) const {
    return weight == other.weight && high == other.high && low == other.low && mean == other.mean &&
           square == other.square;
  }
};

uint16_t upper_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

State random_state(size_t count, bool split, std::mt19937& random) {
  std::normal_distribution<float> normal;
  State state;
  state.split = split;
  for (size_t i = 0; i < count; ++i) {
    float grad = normal(random);
    const float weight = normal(random);
    if (split) {
      state.high.push_back(upper_half(weight));
      state.low.push_back(static_cast<int16_t>(random() & 0xffff));
      state.narrow_grad.push_back(upper_half(grad));
      const uint32_t bits = static_cast<uint32_t>(upper_half(grad)) << 16;
      std::memcpy(&grad, &bits, 4);
    } else {
      state.weight.push_back(weight);
    }
    state.grad.push_back(grad);
    state.mean.push_back(0.1f * normal(random));
    state.square.push_back(0.01f * std::fabs(normal(random)));
  }
  return state;
}

void check_one(size_t count, bool split, float beta1, std::mt19937& random, Tally& tally) {
  const State before = random_state(count, split, random);
  State first = before;
  adamw_step(first.call(beta1), Isa::reference, 1);
  for (const Isa isa : isas_to_check()) {
    State after = before, threaded = before;
    adamw_step(after.call(beta1), isa, 1);
    adamw_step(threaded.call(beta1), isa, 2);
    const std::string name = "adamw n=" + std::to_string(count) + (split ? " split" : "");
    if (!(after == first) || !(threaded == first)) {
      tally.fail("adamw", isa, name + ": bits differ between sets or threads");
      continue;
    }
    double worst = 0.0;
    for (size_t i = 0; i < count; ++i) {
      const double g = before.grad[i], rate = 1.0f - beta1;
      const double mean = before.mean[i] + rate * (g - before.mean[i]);
      const double square = static_cast<double>(before.square[i]) * 0.99f + static_cast<double>(0.01f) * g * g;
      const double move = -0.01f * mean / (std::sqrt(square) / 0.5 + 1e-8f);
      const double expected = static_cast<double>(before.master(i)) * 0.999f + move;
      const double size = std::fabs(before.master(i)) + std::fabs(move) + 1e-3;
      worst = std::fmax(worst, std::fabs(after.master(i) - expected) / (4e-7 * size));
      worst = std::fmax(worst, std::fabs(after.mean[i] - mean) / (4e-7 * (std::fabs(g) + 0.1)));
      worst = std::fmax(worst, std::fabs(after.square[i] - square) / (4e-7 * square + 1e-12));
    }
    if (worst > 1.0)
      tally.fail("adamw", isa, name + ": off by " + std::to_string(worst) + " of what rounding allows");
    else
      tally.pass("adamw", isa, worst);
  }
}

// Moments in codes, and masters of 24 bits or floats.
struct CodedState {
  std::vector<uint8_t> mean, square;
  std::vector<int8_t> mean_exponents, square_exponents, low;
  std::vector<uint16_t> high, narrow_grad;
  std::vector<float> weight, grad;
  bool split;

  AdamwCall call(const std::vector<float>& pattern, const std::vector<float>& shifts) {
    return {static_cast<int64_t>(mean.size()),
            split ? static_cast<void*>(high.data()) : static_cast<void*>(weight.data()),
            split ? low.data() : nullptr,
            split ? 8 : 0,
            split ? static_cast<const void*>(narrow_grad.data()) : static_cast<const void*>(grad.data()),
            {mean.data(), mean_exponents.data(), code_table(true)},
            {square.data(), square_exponents.data(), code_table(false)},
            pattern.data(),
            shifts.data(),
            0.999f,
            0.1f,
            0.99f,
            0.01f,
            0.5f,
            1e-8f,
            -0.01f};
  }
  bool operator==(const CodedState& other) const {
    return mean == other.mean && square == other.square && mean_exponents == other.mean_exponents &&
           square_exponents == other.square_exponents && low == other.low && high == other.high &&
           weight == other.weight;
  }
};

void check_coded(size_t count, bool split, std::mt19937& random, Tally& tally) {
  std::normal_distribution<float> normal;
  CodedState before;
  before.split = split;
  for (size_t i = 0; i < count; ++i) {
    before.mean.push_back(static_cast<uint8_t>(random()));
    before.square.push_back(static_cast<uint8_t>(random()));
    const float weight = normal(random), grad = random() % 9 ? normal(random) * 1e-3f : 0.0f;
    if (split) {
      before.high.push_back(upper_half(weight));
      before.low.push_back(static_cast<int8_t>(random()));
      before.narrow_grad.push_back(upper_half(grad));
    } else {
      before.weight.push_back(weight);
      before.grad.push_back(grad);
    }
  }
  for (size_t i = 0; i < (count + kCodeBlock - 1) / kCodeBlock; ++i) {
    before.mean_exponents.push_back(static_cast<int8_t>(random() % 254 - 126));
    before.square_exponents.push_back(static_cast<int8_t>(random() % 100 - 90));
  }
  std::uniform_real_distribution<float> offset(0.0f, 1.0f);
  std::vector<float> pattern(kDitherPeriod), shifts(count / kDitherPeriod + 1);
  for (float& v : pattern) v = offset(random);
  for (float& v : shifts) v = offset(random);
  CodedState first = before;
  adamw_step(first.call(pattern, shifts), Isa::reference, 1);
  for (const Isa isa : isas_to_check()) {
    CodedState after = before, threaded = before;
    adamw_step(after.call(pattern, shifts), isa, 1);
    adamw_step(threaded.call(pattern, shifts), isa, 2);
    if (after == first && threaded == first)
      tally.pass("adamw", isa, 0.0);
    else
      tally.fail("adamw", isa, "adamw codes n=" + std::to_string(count) + (split ? " split" : "") + ": bits differ");
  }
}

}  // namespace

void check_adamw(Tally& tally) {
  std::mt19937 random(1);
  for (const size_t count : {0, 1, 7, 15, 16, 17, 511, 512, 513, 32768, 40001})
    for (const bool split : {false, true})
      for (const float beta1 : {0.0f, 0.9f}) check_one(count, split, beta1, random, tally);
  for (const size_t count : {0, 1, 15, 255, 256, 257, 40001, 65537})
    for (const bool split : {false, true}) check_coded(count, split, random, tally);
}

void fuzz_adamw(std::mt19937& random, Tally& tally) {
  const size_t count = random() % 2 ? random() % 40 : random() % 3000;
  check_one(count, random() % 2, random() % 2 ? 0.9f : 0.3f, random, tally);
  check_coded(count, random() % 2, random, tally);
}

}  // namespace gossamer::check
