// SPDX-License-Identifier: Apache-2.0
// A feed-forward block whose neurons are mostly zero, for one token: what kernels see and promise.
//
//   gated   y = sum of f(g_i) u_i d_i,  g = G x + b_g, u = U x + b_u,  f(g) = max(g - shift, 0)^power
//   plain   y = sum of f(g_i) d_i
//
// All three matrices are stored neuron by neuron, so that a neuron whose f is zero costs nothing but the
// finding out. That is done on int8 codes of G, a quarter of its bytes: a neuron is a candidate if its g,
// as the codes have it, comes within `kMargin` standard deviations of their rounding errors of the shift.
// Candidates are computed exactly; a neuron that is missed would have had a g just above the shift.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gossamer {

constexpr float kMargin = 6.0f;

struct NeuronView {
  int64_t neurons, features;
  const float *gate, *up, *down;  // [neurons][features]; up is null in plain blocks
  const uint16_t *gate_bf16, *up_bf16, *down_bf16;  // instead of them
  const float *gate_bias, *up_bias;  // [neurons], may be null
  const int8_t* codes;        // [neurons][code_stride]
  int64_t code_stride;        // features and zeros to a multiple of 64
  const float* code_scales;   // [neurons]
  const float* row_norms;     // [neurons], of the rows of gate
  float shift;
  int power;                  // 1: ReLU, 2: its square
};

// x in 16 bits for the codes: sums stay below 2^31.
struct CodedInput {
  const int16_t* values;  // [code_stride], zeros behind the last feature
  float scale;
  float norm;             // of x
};

// Rounding errors are even between -1/2 and 1/2 steps, so of variance 1/12, those of the weights and those of x.
static inline float screen_error(const NeuronView& view, const CodedInput& x, int64_t neuron) {
  const float weights = view.code_scales[neuron] * x.norm, inputs = x.scale * view.row_norms[neuron];
  return kMargin * 0.28867513f * __builtin_sqrtf(weights * weights + inputs * inputs);
}

static inline int input_limit(int64_t features) {
  const int64_t most = (int64_t{1} << 31) / (128 * (features < 1 ? 1 : features)) - 1;
  return most > 32767 ? 32767 : static_cast<int>(most);
}

// All of them allocate and throw nothing.
struct NeuronKernels {
  // Candidates among the neurons first..last, in order; returns how many.
  int64_t (*screen)(const NeuronView&, const CodedInput&, int64_t first, int64_t last, int32_t* candidates);
  // y += what `count` candidates give; returns how many of them were active.
  int64_t (*add)(const NeuronView&, const float* x, const int32_t* candidates, int64_t count, float* y);
};

namespace reference { extern const NeuronKernels neuron_kernels; }
namespace avx2 { extern const NeuronKernels neuron_kernels; }
namespace avx512 { extern const NeuronKernels neuron_kernels; }

}  // namespace gossamer
