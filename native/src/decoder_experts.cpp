// SPDX-License-Identifier: Apache-2.0
#include "gossamer/decoder_experts.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "run_tasks.hpp"

namespace gossamer {
namespace {

void grow(BigVector<float>& memory, int64_t size) {
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(static_cast<size_t>(size));
}

// down(act(up(x))) with scratch that the caller gives.
void feed_forward(const DecoderExpert& expert, bool gated, const DecoderMath& math, DecoderActivation activation,
                  const float* x, int64_t tokens, float* gate_up, float* inner, float* y, int num_threads) {
  const int64_t rows = expert.gate_up.few->rows, ffn = expert.down.few->columns;
  expert.gate_up.run(x, tokens, gate_up, num_threads);
  for (int64_t t = 0; t < tokens; ++t) {
    const float* gate = gate_up + t * rows;
    math.gate(activation, gate, gated ? gate + ffn : nullptr, ffn, inner + t * ffn);
  }
  expert.down.run(inner, tokens, y, num_threads);
}

}  // namespace

void ExpertsRun::choose(const DecoderExperts& experts, const float* x, int64_t tokens, int num_threads) {
  const auto num_experts = static_cast<int64_t>(experts.experts.size());
  const int64_t top_k = experts.top_k;
  grow(logits_, tokens * num_experts);
  chosen_.resize(static_cast<size_t>(tokens * top_k));
  places_.resize(chosen_.size());
  weights_.resize(chosen_.size());
  starts_.assign(static_cast<size_t>(num_experts + 1), 0);
  experts.router.run(x, tokens, logits_.data(), num_threads);
  for (int64_t t = 0; t < tokens; ++t) {
    float* const logits = logits_.data() + t * num_experts;
    int32_t* const chosen = chosen_.data() + t * top_k;
    float* const weights = weights_.data() + t * top_k;
    const float most = *std::max_element(logits, logits + num_experts);
    float all = 0.0f, own = 0.0f;
    for (int64_t e = 0; e < num_experts; ++e) all += logits[e] = std::exp(logits[e] - most);
    for (int64_t k = 0; k < top_k; ++k) {
      // The first of equal ones. Logits that are NaN choose some experts, each once: what they give is NaN.
      int64_t best = -1;
      for (int64_t e = 0; e < num_experts; ++e)
        if (std::find(chosen, chosen + k, e) == chosen + k && (best < 0 || logits[e] > logits[best])) best = e;
      chosen[k] = static_cast<int32_t>(best);
      own += weights[k] = logits[best] / all;
      ++starts_[static_cast<size_t>(best + 1)];
    }
    if (experts.normalised)
      for (int64_t k = 0; k < top_k; ++k) weights[k] /= own;
  }
  active_.clear();
  for (int64_t e = 0; e < num_experts; ++e) {
    if (starts_[static_cast<size_t>(e + 1)]) active_.push_back(static_cast<int32_t>(e));
    starts_[static_cast<size_t>(e + 1)] += starts_[static_cast<size_t>(e)];
  }
  std::vector<int64_t> next(starts_.begin(), starts_.end() - 1);
  for (size_t pair = 0; pair < chosen_.size(); ++pair) places_[pair] = next[static_cast<size_t>(chosen_[pair])]++;
}

void ExpertsRun::run(const DecoderExperts& experts, const DecoderMath& math, DecoderActivation activation,
                     const float* x, int64_t tokens, int64_t width, float* y, int num_threads) {
  choose(experts, x, tokens, num_threads);
  const int64_t rows = experts.experts[0].gate_up.few->rows, ffn = experts.experts[0].down.few->columns;
  const int64_t pairs = tokens * experts.top_k;
  int64_t most_rows = pairs * rows, most_ffn = pairs * ffn, most_given = pairs * width;
  for (const DecoderExpert& shared : experts.shared) {
    most_rows = std::max(most_rows, tokens * shared.gate_up.few->rows);
    most_ffn = std::max(most_ffn, tokens * shared.down.few->columns);
    most_given = std::max(most_given, tokens * width);
  }
  grow(gate_up_, most_rows);
  grow(gated_, most_ffn);
  grow(given_, most_given);
  if (tokens > 1) {
    grow(gathered_, pairs * width);
    for (int64_t pair = 0; pair < pairs; ++pair)
      std::memcpy(gathered_.data() + places_[static_cast<size_t>(pair)] * width, x + pair / experts.top_k * width,
                  static_cast<size_t>(width) * sizeof(float));
  }
  std::fill_n(y, tokens * width, 0.0f);
  for (const DecoderExpert& shared : experts.shared) {
    feed_forward(shared, experts.gated, math, activation, x, tokens, gate_up_.data(), gated_.data(), given_.data(),
                 num_threads);
    if (experts.shared_gate.few) experts.shared_gate.run(x, tokens, logits_.data(), num_threads);
    for (int64_t t = 0; t < tokens; ++t) {
      const float factor = experts.shared_gate.few ? 1.0f / (1.0f + std::exp(-logits_[static_cast<size_t>(t)])) : 1.0f;
      math.add(given_.data() + t * width, width, factor, y + t * width);
    }
  }
  const auto one = [&](int64_t expert, int threads) {
    const int64_t first = starts_[static_cast<size_t>(expert)], count = starts_[static_cast<size_t>(expert + 1)] - first;
    feed_forward(experts.experts[static_cast<size_t>(expert)], experts.gated, math, activation,
                 tokens > 1 ? gathered_.data() + first * width : x, count, gate_up_.data() + first * rows,
                 gated_.data() + first * ffn, given_.data() + first * width, threads);
    return true;
  };
  // Threads share experts where there are enough of them: one wait for all instead of two for each.
  const auto num_active = static_cast<int64_t>(active_.size());
  if (num_active >= 2 * num_threads)
    run_tasks(num_active, num_threads, [&](int64_t i) { return one(active_[static_cast<size_t>(i)], 1); });
  else
    for (const int32_t expert : active_) one(expert, num_threads);
  for (int64_t pair = 0; pair < pairs; ++pair)
    math.add(given_.data() + places_[static_cast<size_t>(pair)] * width, width, weights_[static_cast<size_t>(pair)],
             y + pair / experts.top_k * width);
}

}  // namespace gossamer
