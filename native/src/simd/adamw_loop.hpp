// SPDX-License-Identifier: Apache-2.0
// Plain loops that compilers turn into vectors: an AdamW step has no lane that needs another one.
#pragma once
#include "gossamer/adamw.hpp"

// No product and sum may be fused but the one that is written: bits must not depend on the compiler's choice,
// nor on whether an entry falls into a whole vector.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")

namespace gossamer {

static inline float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

// Entries of one piece in float; `weight` and `grad` are vectors of the caller.
static inline void adamw_floats(const AdamwCall& c, float* __restrict weight, const float* __restrict grad,
                                float* __restrict mean, float* __restrict square, int64_t count) {
  const float keep = c.keep, mean_rate = c.mean_rate, square_keep = c.square_keep, square_rate = c.square_rate;
  const float correction = c.root_correction, eps = c.eps, step = c.step;
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i];
    const float m = mean_rate < 0.5f ? __builtin_fmaf(mean_rate, g - mean[i], mean[i])
                                     : __builtin_fmaf(mean_rate - 1.0f, g - mean[i], g);
    const float scaled = square_rate * g;
    const float v = square[i] * square_keep + scaled * g;
    const float denominator = __builtin_sqrtf(v) / correction + eps;
    const float moved = step * m;
    mean[i] = m;
    square[i] = v;
    weight[i] = weight[i] * keep + moved / denominator;
  }
}

static inline void adamw_entries(const AdamwCall& c, int64_t first, int64_t last) {
  if (!c.low) {
    adamw_floats(c, static_cast<float*>(c.weight) + first, static_cast<const float*>(c.grad) + first,
                 c.mean + first, c.square + first, last - first);
    return;
  }
  constexpr int64_t kPiece = 512;
  float master[kPiece], grad[kPiece];
  for (int64_t start = first; start < last; start += kPiece) {
    const int64_t count = last - start < kPiece ? last - start : kPiece;
    uint16_t* __restrict high = static_cast<uint16_t*>(c.weight) + start;
    const uint16_t* __restrict g = static_cast<const uint16_t*>(c.grad) + start;
    int16_t* __restrict low = c.low + start;
    for (int64_t i = 0; i < count; ++i) {
      master[i] = float_of((static_cast<uint32_t>(high[i]) << 16) + static_cast<uint32_t>(static_cast<int32_t>(low[i])));
      grad[i] = float_of(static_cast<uint32_t>(g[i]) << 16);
    }
    adamw_floats(c, master, grad, c.mean + start, c.square + start, count);
    for (int64_t i = 0; i < count; ++i) {
      // A NaN whose lower bits are all set would be rounded up into a zero.
      const uint32_t bits = master[i] == master[i] ? bits_of(master[i]) : 0x7fc00000u;
      high[i] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
      low[i] = static_cast<int16_t>(static_cast<uint16_t>(bits));
    }
  }
}

}  // namespace gossamer

#pragma GCC pop_options
