// SPDX-License-Identifier: Apache-2.0
// What a decoder computes between its weights. All fp32.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

// Of the feed-forward part.
enum class DecoderActivation : int { silu = 0, gelu_tanh = 1, gelu = 2, relu = 3 };

struct DecoderMath {
  // y = x / sqrt(mean(x^2) + eps) * weight; y may be x
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
  // y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; y may be x
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* y);
  // sum += x * scale
  void (*add)(const float* x, int64_t n, float scale, float* sum);
  // A head times `scale`: pairs (i, i + pairs) of it turned by the angles of a position, the rest as it is.
  void (*rotate)(const float* head, int64_t dim, int64_t pairs, const float* cosines, const float* sines, float scale,
                 float* y);
  // y = activation(gate) * up; up may be null, for a factor of 1
  void (*gate)(DecoderActivation activation, const float* gate, const float* up, int64_t n, float* y);
  // x = x * scale, then limit * tanh(x / limit) unless limit is 0
  void (*scale_and_cap)(float* x, int64_t n, float scale, float limit);
};

namespace reference { extern const DecoderMath decoder_math; }
namespace avx2 { extern const DecoderMath decoder_math; }
namespace avx512 { extern const DecoderMath decoder_math; }

const DecoderMath& decoder_math(Isa isa);

}  // namespace gossamer
