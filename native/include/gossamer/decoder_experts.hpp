// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a decoder as a mixture of experts: a router chooses some for each token, and the weights of
// no others are read. Tokens of an expert are multiplied together.
#pragma once
#include <cstdint>
#include <vector>

#include "gossamer/big_alloc.hpp"
#include "gossamer/decoder_linear.hpp"
#include "gossamer/decoder_math.hpp"

namespace gossamer {

struct DecoderExpert {
  DecoderLinear gate_up, down;
};

struct DecoderExperts {
  int64_t top_k = 0;
  bool normalised = false;  // the weights of a token's experts add up to 1
  bool gated = true;        // rows of gate and up; else of up alone
  DecoderLinear router;     // [experts, width], fp32
  std::vector<DecoderExpert> experts;
  std::vector<DecoderExpert> shared;  // none, or one that sees all tokens
  DecoderLinear shared_gate;          // [1, width]: the logit of its factor; without a weight: the factor is 1

  bool is_empty() const { return experts.empty(); }
};

// What experts of one session compute in. One call at a time.
class ExpertsRun {
 public:
  // y = the weighted sum of what its experts make of every token [tokens, width]. May throw std::bad_alloc.
  void run(const DecoderExperts& experts, const DecoderMath& math, DecoderActivation activation, const float* x,
           int64_t tokens, int64_t width, float* y, int num_threads);

 private:
  void choose(const DecoderExperts& experts, const float* x, int64_t tokens, int num_threads);

  BigVector<float> logits_, gathered_, gate_up_, gated_, given_;
  std::vector<int32_t> chosen_;   // [tokens][top_k]
  std::vector<float> weights_;    // of the chosen ones
  std::vector<int64_t> starts_;   // where the pairs of an expert start, sorted by expert
  std::vector<int64_t> places_;   // [tokens][top_k]: the place of a pair among the sorted ones
  std::vector<int32_t> active_;   // experts that have tokens
};

}  // namespace gossamer
