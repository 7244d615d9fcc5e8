// SPDX-License-Identifier: Apache-2.0
#include "gossamer/few_int_layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gossamer/bf16.hpp"
#include "mask_bytes.hpp"

namespace gossamer {
namespace {

constexpr size_t kSpareBytes = 64;  // kernels read whole vectors behind the last value

int quantised(float v, float scale, int lowest, int highest) {
  if (scale == 0.0f) return 0;
  return std::clamp(static_cast<int>(std::nearbyint(std::clamp(v / scale, -1e4f, 1e4f))), lowest, highest);
}

uint64_t step_mask(const KeptWeight& weight, int64_t row, int64_t step) {
  const int64_t first = step * 8, count = std::min<int64_t>(8, weight.mask_stride() - first);
  uint64_t mask = 0;
  std::memcpy(&mask, weight.mask_bits + row * weight.mask_stride() + first, static_cast<size_t>(count));
  return mask;
}

// The kept values of one row, a step after the other; without masks a step has all its 64 columns.
struct Steps {
  std::vector<float> values;
  std::vector<int64_t> starts;
};

Steps steps_of_row(const KeptWeight& weight, int64_t row, int64_t num_steps, bool is_dense, const float*& value) {
  Steps steps;
  for (int64_t s = 0; s < num_steps; ++s) {
    steps.starts.push_back(static_cast<int64_t>(steps.values.size()));
    const int kept = __builtin_popcountll(step_mask(weight, row, s));
    steps.values.insert(steps.values.end(), value, value + kept);
    value += kept;
    if (is_dense) steps.values.resize(static_cast<size_t>((s + 1) * kIntStep), 0.0f);
  }
  steps.starts.push_back(static_cast<int64_t>(steps.values.size()));
  return steps;
}

float largest_of(const Steps& steps, int64_t first, int64_t last) {
  float largest = 0.0f;
  for (int64_t i = steps.starts[first]; i < steps.starts[last]; ++i)
    largest = std::max(largest, std::fabs(steps.values[i]));
  return largest;
}

void add_int8(const Steps& steps, FewIntLayout& layout) {
  const float scale = largest_of(steps, 0, layout.shape.steps) / 127.0f;
  layout.row_scales.push_back(scale);
  for (const float v : steps.values) layout.values.push_back(static_cast<uint8_t>(quantised(v, scale, -127, 127)));
}

void add_int4(const Steps& steps, FewIntLayout& layout) {
  const int64_t num_steps = layout.shape.steps, span = layout.shape.span;
  for (int64_t first = 0; first < num_steps; first += span) {
    const int64_t last = std::min(first + span, num_steps);
    const uint16_t half = to_bf16(largest_of(steps, first, last) / 7.0f);
    layout.scales.push_back(half);
    for (int64_t s = first; s < last; ++s)
      for (int64_t i = steps.starts[s]; i < steps.starts[s + 1]; ++i) {
        const int q = quantised(steps.values[i], from_bf16(half), -8, 7) & 15;
        if ((i - steps.starts[s]) % 2)
          layout.values.back() |= static_cast<uint8_t>(q << 4);
        else
          layout.values.push_back(static_cast<uint8_t>(q));
      }
  }
}

}  // namespace

FewIntLayout pack_few_int_layout(const KeptWeight& weight, bool is_int4, int64_t scale_group) {
  FewIntLayout layout;
  FewIntView& shape = layout.shape;
  shape.rows = weight.rows;
  shape.columns = weight.columns;
  shape.steps = (weight.columns + kIntStep - 1) / kIntStep;
  shape.is_int4 = is_int4;
  const int64_t kept = count_bits(weight.mask_bits, weight.rows * weight.mask_stride());
  const int64_t all = weight.rows * weight.columns;
  const bool is_dense = kept == all;
  const double per_step = all ? double(kept) / double(all) * double(kIntStep) : 1.0;
  const double span = std::min(double(scale_group) / std::max(per_step, 1e-9), double(std::max<int64_t>(shape.steps, 1)));
  shape.span = std::max<int64_t>(static_cast<int64_t>(span + 0.5), 1);
  shape.scales_of_row = (shape.steps + shape.span - 1) / shape.span;
  layout.values.reserve(static_cast<size_t>((is_dense ? weight.rows * shape.steps * kIntStep : kept + weight.rows * shape.steps) /
                                            (is_int4 ? 2 : 1)) + kSpareBytes);
  if (!is_dense) layout.masks.reserve(static_cast<size_t>(weight.rows * shape.steps));
  const float* value = weight.values;
  for (int64_t r = 0; r < weight.rows; ++r) {
    if (r % kIntRowUnit == 0) layout.unit_starts.push_back(static_cast<int64_t>(layout.values.size()));
    for (int64_t s = 0; s < shape.steps && !is_dense; ++s) layout.masks.push_back(step_mask(weight, r, s));
    const Steps steps = steps_of_row(weight, r, shape.steps, is_dense, value);
    is_int4 ? add_int4(steps, layout) : add_int8(steps, layout);
  }
  layout.values.resize(layout.values.size() + kSpareBytes, 0);
  return layout;
}

FewIntView FewIntLayout::view() const {
  FewIntView view = shape;
  view.masks = masks.empty() ? nullptr : masks.data();
  view.values = values.data();
  view.unit_starts = unit_starts.data();
  view.row_scales = row_scales.data();
  view.scales = scales.data();
  return view;
}

}  // namespace gossamer
