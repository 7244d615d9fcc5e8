// SPDX-License-Identifier: Apache-2.0
// The specification of the kernels for few tokens: plain loops over the layouts, no intrinsics.
#include <cstring>

#include "few_value.hpp"
#include "reference/activation.hpp"

namespace gossamer::reference {
namespace {

float bitmask_dot(const FewView& view, int64_t row, const float* x) {
  const int64_t scales = row * ceil_div(view.columns, view.scale_span);
  int64_t at = view.row_starts[row];
  float sum = 0.0f;
  for (int64_t k = 0; k < view.columns; ++k)
    if (view.positions[row * view.mask_stride + k / 8] >> (k % 8) & 1)
      sum += stored_value(view, at++) * scale_of(view, scales + k / view.scale_span) * x[k];
  return sum;
}

float indexed_dot(const FewView& view, int64_t row, const float* x) {
  float sum = 0.0f;
  const int64_t begin = view.row_starts[row];
  for (int64_t g = begin; g < view.row_starts[row + 1]; ++g) {
    const uint8_t* index = view.positions + g * kIndexedGroup;
    x += index[0];
    const float scale = scale_of(view, view.scale_starts[row] + (g - begin) / view.scale_span);
    for (int64_t j = 0; j < kIndexedGroup; ++j)
      sum += stored_value(view, g * kIndexedGroup + j) * scale * x[j ? index[j] : 0];
  }
  return sum;
}

float nm_dot(const FewView& view, int64_t row, const float* x) {
  const int64_t num_slots = ceil_div(view.columns, view.window) * view.slots;
  const int64_t strip = row / view.lanes, lane = row % view.lanes;
  const int64_t scales = strip * ceil_div(num_slots, view.scale_span);
  float sum = 0.0f;
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    const int64_t at = strip * num_slots + slot;
    uint64_t word = 0;
    std::memcpy(&word, view.positions + (at * view.lanes / 8 + lane / 8) * view.position_bits,
                static_cast<size_t>(view.position_bits));
    const int64_t position = word >> (lane % 8 * view.position_bits) & ((1 << view.position_bits) - 1);
    sum += stored_value(view, at * view.lanes + lane) *
           scale_of(view, (scales + slot / view.scale_span) * view.lanes + lane) *
           x[slot / view.slots * view.window + position];
  }
  return sum;
}

template <float (*dot)(const FewView&, int64_t, const float*)>
void run(const FewView& view, const LinearCall& call, int64_t first_row, int64_t last_row, float*) {
  for (int64_t t = 0; t < call.tokens; ++t)
    for (int64_t r = first_row; r < last_row; ++r) {
      float sum = dot(view, r, call.x + t * call.x_stride);
      if (view.type == ValueType::int8) sum *= view.row_scales[r];
      if (call.bias) sum += call.bias[r];
      call.y[t * call.y_stride + r] = activate(sum, call.activation);
    }
}

}  // namespace

const FewKernels few_kernels = {{{run<bitmask_dot>, run<bitmask_dot>, run<bitmask_dot>, run<bitmask_dot>},
                                 {run<indexed_dot>, run<indexed_dot>, run<indexed_dot>, run<indexed_dot>},
                                 {run<nm_dot>, run<nm_dot>, run<nm_dot>, run<nm_dot>}},
                                8};

}  // namespace gossamer::reference
