// SPDX-License-Identifier: Apache-2.0
// What the native checks share: random weights, a float64 oracle, and a walk over edge sizes that
// holds any packed fp32 weight against it. One file check_<family>.cpp per kernel family.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer::check {

struct Weight {
  int64_t rows, columns;
  std::vector<float> dense, kept;  // dense holds zeros where the mask is off
  std::vector<uint8_t> mask_bits, mask;

  KeptWeight view() const { return {kept.data(), mask_bits.data(), rows, columns}; }
};

using Mask = std::function<bool(int64_t row, int64_t column)>;

// Normal values where the mask is on.
Weight masked_weight(int64_t rows, int64_t columns, const Mask& keeps, std::mt19937& random);
Weight random_weight(int64_t rows, int64_t columns, double density, std::mt19937& random);
// What a layout rounded to bf16 stands for.
Weight rounded_to_bf16(Weight weight);

struct Call {
  int64_t tokens, x_pad, y_pad;
  bool has_bias;
  Activation activation;
  float scale;
  bool rounds_to_bf16;  // x, inside the call
};

// The instruction sets of this CPU, and AVX-512 where it is emulated.
const std::vector<Isa>& isas_to_check();

// Outcomes by family and instruction set.
class Tally {
 public:
  void pass(const std::string& family, Isa isa, double error_of_tolerance);
  void fail(const std::string& family, Isa isa, const std::string& what);
  int64_t failures() const;
  bool print() const;  // false if anything failed or nothing ran

 private:
  struct Entry {
    std::string name;
    int64_t calls = 0, failures = 0;
    double worst = 0.0;
  };
  std::vector<Entry> entries_;
  Entry& entry(const std::string& family, Isa isa);
};

constexpr double kRoundoff = 1.0 / (1 << 24);  // of one fp32 operation

// What a network makes of the roundings inside of it cannot be said by a fixed number: norms divide by what may be
// small, gates multiply, softmax follows the largest. So an oracle of a whole network takes a `Roundings` and gives it
// every intermediate result with the most by which it may be off there. With a generator results are moved by random
// numbers within these bounds, without one they stay.
class Roundings {
 public:
  explicit Roundings(std::mt19937* random, bool in_int8 = false) : random_(random), in_int8_(in_int8) {}
  double within(double v, double bound) {
    if (!random_) return v;
    return v + bound * std::uniform_real_distribution<double>(-1.0, 1.0)(*random_);
  }
  double of(double v, double roundings) { return within(v, roundings * kRoundoff * (v < 0 ? -v : v)); }
  // A number that int8 stores beside others up to `largest`: off by half a step.
  double stored(double v, double largest) { return in_int8_ ? within(v, largest / 127 / 2) : v; }
  bool in_int8() const { return in_int8_; }

 private:
  std::mt19937* random_;
  bool in_int8_;
};

// By how much a network may miss `wanted`: the largest difference, and the largest root of the mean square, that a few
// draws of such roundings make.
struct Moved {
  double most, typical;
};
Moved moved_by(const std::vector<double>& wanted, std::mt19937& random, bool in_int8,
               const std::function<std::vector<double>(Roundings&)>& oracle);

// A random call: any of the token counts, strides, bias, activations and scales that matter.
Call random_call(std::mt19937& random);

// Runs a packed weight with 1 and 2 threads, on every call the same x, against the oracle of
// `weight`: results within rounding, nothing written outside y, the same bits with both.
void check_packed(const std::string& family, Isa isa, const Weight& weight, const PackedWeight& packed,
                  const Call& call, unsigned seed, Tally& tally);

// For lossless layouts: values and mask come back as they went in.
void check_unpack(const std::string& family, Isa isa, const Weight& weight, const PackedWeight& packed,
                  Tally& tally);

// Sizes and density for a random case: small ones and remainders more often than large ones.
struct Draw {
  int64_t rows, columns;
  double density;
};
Draw random_draw(std::mt19937& random);

// Per family: a fixed walk over edge sizes, and one random case on every instruction set.
void check_panel(Tally& tally);
void fuzz_panel(std::mt19937& random, Tally& tally);
void check_int8(Tally& tally);
void fuzz_int8(std::mt19937& random, Tally& tally);
void check_bf16_pairs(Tally& tally);
void fuzz_bf16_pairs(std::mt19937& random, Tally& tally);
void check_row_groups(Tally& tally);
void fuzz_row_groups(std::mt19937& random, Tally& tally);
void check_encoder(Tally& tally);
void fuzz_encoder(std::mt19937& random, Tally& tally);
void check_decoder(Tally& tally);
void fuzz_decoder(std::mt19937& random, Tally& tally);
void check_few(Tally& tally);
void fuzz_few(std::mt19937& random, Tally& tally);
void check_few_int(Tally& tally);
void fuzz_few_int(std::mt19937& random, Tally& tally);
void check_absorb(Tally& tally);
void fuzz_absorb(std::mt19937& random, Tally& tally);
void check_adamw(Tally& tally);
void fuzz_adamw(std::mt19937& random, Tally& tally);
void check_train(Tally& tally);
void fuzz_train(std::mt19937& random, Tally& tally);
void check_conv(Tally& tally);
void fuzz_conv(std::mt19937& random, Tally& tally);
void check_attention(Tally& tally);
void fuzz_attention(std::mt19937& random, Tally& tally);
void check_kv(Tally& tally);
void fuzz_kv(std::mt19937& random, Tally& tally);
void check_graph(Tally& tally);
void fuzz_graph(std::mt19937& random, Tally& tally);
void check_conv_net(Tally& tally);
void fuzz_conv_net(std::mt19937& random, Tally& tally);
void check_table(Tally& tally);
void fuzz_table(std::mt19937& random, Tally& tally);
void check_tall(Tally& tally);
void fuzz_tall(std::mt19937& random, Tally& tally);
void check_dense(Tally& tally);
void fuzz_dense(std::mt19937& random, Tally& tally);

}  // namespace gossamer::check
