// SPDX-License-Identifier: Apache-2.0
// A feed-forward block whose neurons are mostly zero, for one token: what kernels see and promise.
//
//   gated   y = sum of f(g_i) u_i d_i,  g = G x + b_g, u = U x + b_u,  f(g) = (g - shift)^power where g > threshold
//   plain   y = sum of f(g_i) d_i
//
// All three matrices are stored neuron by neuron, so that a neuron whose f is zero costs nothing but the
// finding out. That is done on 8-bit codes of G, in two steps of 4 bits: a neuron is a candidate if its g,
// as the codes read so far have it, comes within `kMargin` standard deviations of their errors of the
// threshold. Only candidates of the first step have their lower bits read, and only those of the second are
// computed from the rows; a neuron that is missed would have had a g just above the threshold.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gossamer {

constexpr float kMargin = 6.0f;
// Features of one group of codes. A code c in [-119, 119] is 16 high + low, both in [-8, 7]. A plane has 32 words a
// group: bits 4n to 4n + 3 of word j hold high + 8, or low + 8, of feature 32n + j of the group.
constexpr int64_t kCodeGroup = 128;
constexpr int kTopCode = 119;

// One of the three matrices, [neurons][stride]: as it was, in bf16, or as int8 with a scale for each row.
struct NeuronRows {
  const float* fp32 = nullptr;
  const uint16_t* bf16 = nullptr;
  const int8_t* int8 = nullptr;
  const float* scales = nullptr;

  explicit operator bool() const { return fp32 || bf16 || int8; }
};

struct NeuronView {
  int64_t neurons, features;
  int64_t stride;                // of rows: features, or for int8 a multiple of kCodeGroup
  NeuronRows gate, up, down;     // no up in plain blocks; no gate where rows are int8, the codes are it
  const float *gate_bias, *up_bias;  // [neurons], may be null
  const uint16_t *high, *low;    // [neurons][code_words]
  int64_t code_words;
  const float* code_scales;      // [neurons]
  const float* row_norms;        // [neurons], of the rows of gate
  // [neurons]: of what a row has beyond its high bits the mean, and the norm of the rest; the norm beyond both.
  const float *high_means, *high_errors, *low_errors;
  float shift, threshold;
  int power;                     // 1: ReLU, 2: its square
};

// x in 16 bits for the codes: sums stay below 2^31.
struct CodedInput {
  const int16_t* values;  // [a multiple of kCodeGroup], zeros behind the last feature
  float scale;
  float norm;             // of x
  int32_t sum;            // of the values
};

// The errors of a row are taken for noise that knows nothing of x, those of x are even between -1/2 and 1/2 steps.
static inline float screen_error(const NeuronView& view, const CodedInput& x, int64_t neuron, const float* errors) {
  const float weights = errors[neuron] * x.norm / __builtin_sqrtf(static_cast<float>(view.features));
  const float inputs = 0.28867513f * x.scale * view.row_norms[neuron];
  return kMargin * __builtin_sqrtf(weights * weights + inputs * inputs);
}

// g of a neuron by its high bits: what they leave out has a mean, which is known.
static inline float screen_high(const NeuronView& view, const CodedInput& x, int64_t neuron, int32_t high) {
  const float total = x.scale * static_cast<float>(x.sum);
  return 16.0f * static_cast<float>(high) * (x.scale * view.code_scales[neuron]) + view.high_means[neuron] * total +
         (view.gate_bias ? view.gate_bias[neuron] : 0.0f);
}

// And by all of them.
static inline float screen_both(const NeuronView& view, const CodedInput& x, int64_t neuron, int32_t high, int32_t low) {
  return (16.0f * static_cast<float>(high) + static_cast<float>(low)) * (x.scale * view.code_scales[neuron]) +
         (view.gate_bias ? view.gate_bias[neuron] : 0.0f);
}

static inline int input_limit(int64_t features) {
  const int64_t most = (int64_t{1} << 31) / (128 * (features < 1 ? 1 : features)) - 1;
  return most > 32767 ? 32767 : static_cast<int>(most);
}

// All of them allocate and throw nothing.
struct NeuronKernels {
  // Candidates among the neurons first..last, in order, and their g as the codes have it; returns how many.
  int64_t (*screen)(const NeuronView&, const CodedInput&, int64_t first, int64_t last, int32_t* candidates, float* g);
  // y += what `count` candidates give; returns how many of them were active, and their numbers in `active`, which may
  // be `candidates`. g: as `screen` gave it, or null.
  int64_t (*add)(const NeuronView&, const float* x, const CodedInput&, const int32_t* candidates, const float* g,
                 int64_t count, int32_t* active, float* y);
};

namespace reference { extern const NeuronKernels neuron_kernels; }
namespace avx2 { extern const NeuronKernels neuron_kernels; }
namespace avx512 { extern const NeuronKernels neuron_kernels; }

}  // namespace gossamer
