// SPDX-License-Identifier: Apache-2.0
// The specification of the integer kernels for few tokens: plain loops over the layout.
#include "gossamer/few_int.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "few_int_row.hpp"
#include "reference/activation.hpp"

namespace gossamer::reference {
namespace {

// Steps as small as this are zeros: 127 / largest would not be a number.
constexpr float kSmallest = 1e-30f;

float quantise_step(const float* x, int64_t count, uint8_t* bytes) {
  float largest = 0.0f;
  bool is_finite = true;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    is_finite &= std::isfinite(x[i]);
  }
  const float inverse = is_finite && largest >= kSmallest ? 127.0f / largest : 0.0f;
  for (int64_t i = 0; i < kIntStep; ++i)
    bytes[i] = static_cast<uint8_t>(128 + (i < count && inverse != 0.0f ? static_cast<int>(std::nearbyint(x[i] * inverse)) : 0));
  return is_finite ? (largest >= kSmallest ? largest / 127.0f : 0.0f) : std::numeric_limits<float>::quiet_NaN();
}

void run(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  float* scales = reinterpret_cast<float*>(bytes + view.steps * kIntStep);
  for (int64_t t = 0; t < call.tokens; ++t) {
    const float* x = call.x + t * call.x_stride;
    for (int64_t s = 0; s < view.steps; ++s)
      scales[s] = quantise_step(x + s * kIntStep, std::min(kIntStep, view.columns - s * kIntStep), bytes + s * kIntStep);
    for (int64_t r = first_row; r < last_row; ++r) {
      float sum = 0.0f;
      int64_t group = 0;  // half steps, where those have scales, else steps
      const int64_t width = view.has_halves ? kIntHalf : kIntStep;
      int32_t products = 0, activations = 0;
      float scale = 0.0f, offset = 0.0f;
      const auto close_group = [&] {
        const float x_scale = scales[group * width / kIntStep];
        sum += static_cast<float>(products) * (scale * x_scale) + static_cast<float>(activations) * (offset * x_scale);
        products = activations = 0;
      };
      bool is_nan = false;
      for (int64_t s = 0; s < view.steps; ++s) is_nan |= scales[s] != scales[s];
      each_weight(view, r, [&](int64_t column, int value, float weight_scale, float weight_offset) {
        if (column / width != group) close_group(), group = column / width;
        products += (bytes[column] - 128) * value;
        activations += bytes[column] - 128;
        scale = weight_scale;
        offset = weight_offset;
      });
      if (view.steps) close_group();
      if (is_nan) sum = std::numeric_limits<float>::quiet_NaN();
      if (call.bias) sum += call.bias[r];
      call.y[t * call.y_stride + r] = activate(sum, call.activation);
    }
  }
}

}  // namespace

const FewIntKernel few_int_kernel = run;

}  // namespace gossamer::reference
