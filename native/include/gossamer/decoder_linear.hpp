// SPDX-License-Identifier: Apache-2.0
// One weight of a decoder, in the layouts that run few and many tokens.
#pragma once
#include <cstdint>
#include <vector>

#include "gossamer/packed_weight.hpp"

namespace gossamer {

// From here on the layouts for many tokens are used, where a layer has them.
constexpr int64_t kManyTokens = 17;

// Owned by whoever builds the decoder; it must outlive it.
struct DecoderLinear {
  const PackedWeight* few = nullptr;
  const PackedWeight* many = nullptr;  // may be null
  std::vector<float> bias;             // empty or [rows]

  // y = x W^T + bias with rows of x and y behind one another. May throw std::bad_alloc.
  void run(const float* x, int64_t tokens, float* y, int num_threads) const {
    const PackedWeight& packed = many && tokens >= kManyTokens ? *many : *few;
    packed.run({x, tokens, packed.columns, y, packed.rows, bias.empty() ? nullptr : bias.data(), Activation::none},
               num_threads);
  }
};

}  // namespace gossamer
