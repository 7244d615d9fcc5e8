// SPDX-License-Identifier: Apache-2.0
// What a decoder computes between its weights. All fp32.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

constexpr int64_t kKeyBlock = 32;     // positions side by side, so that a score is a lane
constexpr int64_t kHeadDimUnit = 16;  // heads are padded to a multiple of it in the cache

// One token and one head of keys and values, with the query heads that share it.
struct AttendCall {
  const float* queries;  // [group][padded_dim], scaled, zeros behind the head
  const float* keys;     // [block][padded_dim][kKeyBlock]
  const float* values;   // [position][padded_dim]
  int64_t group, padded_dim, positions;
  float* scores;  // [group][positions, to whole blocks]
  float* out;     // [group][padded_dim]
};

struct DecoderMath {
  // y = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
  void (*add)(const float* x, int64_t n, float* sum);
  // Both halves of a head, turned by the angles of a position and scaled.
  void (*rotate)(const float* head, int64_t dim, const float* cosines, const float* sines, float scale, float* y);
  // y = silu(gate) * up
  void (*gate)(const float* gate, const float* up, int64_t n, float* y);
  // out = softmax(queries keys^T) values
  void (*attend)(const AttendCall& call);
};

namespace reference { extern const DecoderMath decoder_math; }
namespace avx2 { extern const DecoderMath decoder_math; }
namespace avx512 { extern const DecoderMath decoder_math; }

const DecoderMath& decoder_math(Isa isa);

}  // namespace gossamer
