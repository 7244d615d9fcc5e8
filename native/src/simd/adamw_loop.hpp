// SPDX-License-Identifier: Apache-2.0
// Plain loops that compilers turn into vectors: an AdamW step has no lane that needs another one.
#pragma once
#include "gossamer/adamw.hpp"
#include "simd/adamw_codes.hpp"
#include "simd/float_bits.hpp"

// No product and sum may be fused but the one that is written: bits must not depend on the compiler's choice,
// nor on whether an entry falls into a whole vector.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")

namespace gossamer {

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

// Offsets for rounding down to 8 bits. Decoding and encoding again must not fall below the same code by a rounding.
static inline void dither_offsets(const AdamwCall& c, int64_t start, int64_t count, float* __restrict to) {
  const float* __restrict pattern = c.dither_pattern + start % kDitherPeriod;
  const float shift = c.dither_shifts[start / kDitherPeriod], lowest = 1e-4f, highest = 1.0f - 1e-4f;
  for (int64_t i = 0; i < count; ++i) {
    const float sum = pattern[i] + shift;
    const float offset = sum < 1.0f ? sum : sum - 1.0f;
    const float raised = offset > lowest ? offset : lowest;
    to[i] = raised < highest ? raised : highest;
  }
}

// Float masters of bf16 weights and their low bits.
template <class Low>
static inline void join_masters(const AdamwCall& c, int64_t start, int64_t count, float* __restrict master) {
  const uint16_t* __restrict high = static_cast<const uint16_t*>(c.weight) + start;
  const Low* __restrict low = static_cast<const Low*>(c.low) + start;
  constexpr int kShift = 16 - 8 * sizeof(Low);
  for (int64_t i = 0; i < count; ++i)
    master[i] = float_of((static_cast<uint32_t>(high[i]) << 16) +
                         (static_cast<uint32_t>(static_cast<int32_t>(low[i])) << kShift));
}

// Back again; what 8 bits cannot hold is rounded down after adding an offset.
template <class Low>
static inline void split_masters(const AdamwCall& c, int64_t start, int64_t count, const float* __restrict master,
                                 const float* __restrict offsets) {
  uint16_t* __restrict high = static_cast<uint16_t*>(c.weight) + start;
  Low* __restrict low = static_cast<Low*>(c.low) + start;
  for (int64_t i = 0; i < count; ++i) {
    // A NaN whose lower bits are all set would be rounded up into a zero.
    uint32_t bits = master[i] == master[i] ? bits_of(master[i]) : 0x7fc00000u;
    if (sizeof(Low) == 1) bits = (bits + static_cast<uint32_t>(static_cast<int32_t>(offsets[i] * 256.0f))) & ~0xffu;
    high[i] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    low[i] = static_cast<Low>(sizeof(Low) == 1 ? bits >> 8 : bits);
  }
}

static inline void adamw_entries(const AdamwCall& c, int64_t first, int64_t last) {
  const bool coded = c.mean.exponents != nullptr;
  if (!c.low && !coded) {
    adamw_floats(c, static_cast<float*>(c.weight) + first, static_cast<const float*>(c.grad) + first,
                 static_cast<float*>(c.mean.entries) + first, static_cast<float*>(c.square.entries) + first,
                 last - first);
    return;
  }
  float masters[kCodeBlock], grads[kCodeBlock], means[kCodeBlock], squares[kCodeBlock], offsets[kCodeBlock];
  for (int64_t start = first; start < last; start += kCodeBlock) {
    const int64_t count = last - start < kCodeBlock ? last - start : kCodeBlock;
    float* master = c.low ? masters : static_cast<float*>(c.weight) + start;
    const float* grad = c.low ? grads : static_cast<const float*>(c.grad) + start;
    float* mean = coded ? means : static_cast<float*>(c.mean.entries) + start;
    float* square = coded ? squares : static_cast<float*>(c.square.entries) + start;
    if (c.dither_pattern) dither_offsets(c, start, count, offsets);
    if (c.low) {
      c.low_bits == 8 ? join_masters<int8_t>(c, start, count, masters) : join_masters<int16_t>(c, start, count, masters);
      const uint16_t* __restrict narrow = static_cast<const uint16_t*>(c.grad) + start;
      for (int64_t i = 0; i < count; ++i) grads[i] = float_of(static_cast<uint32_t>(narrow[i]) << 16);
    }
    if (coded) {
      decode_moment(c.mean, start, count, means);
      decode_moment(c.square, start, count, squares);
    }
    adamw_floats(c, master, grad, mean, square, count);
    if (coded) {
      encode_moment<true>(c.mean, start, count, means, offsets);
      encode_moment<false>(c.square, start, count, squares, offsets);
    }
    if (c.low_bits == 8)
      split_masters<int8_t>(c, start, count, masters, offsets);
    else if (c.low)
      split_masters<int16_t>(c, start, count, masters, offsets);
  }
}

}  // namespace gossamer

#pragma GCC pop_options
