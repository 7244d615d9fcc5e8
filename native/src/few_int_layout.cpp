// SPDX-License-Identifier: Apache-2.0
#include "gossamer/few_int_layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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
  for (const float v : steps.values) layout.values.push_back(static_cast<uint8_t>(quantised(v, scale, -127, 127) + 128));
}

// The scale with the least squared error among some: the largest weight is level 4 to 8, or is clipped.
// A group that lies on the levels of a scale already, gets that scale.
uint16_t int4_scale(const Steps& steps, int64_t first, int64_t last) {
  const float largest = largest_of(steps, first, last);
  uint16_t best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (const float divisor : {7.0f, 8.0f, 9.0f, 10.0f, 6.0f, 5.0f, 4.0f}) {
    const uint16_t half = to_bf16(largest / divisor);
    const float scale = from_bf16(half), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    float error = 0.0f;
    for (int64_t i = steps.starts[first]; i < steps.starts[last]; ++i) {
      const float level = std::clamp(std::nearbyint(steps.values[i] * inverse), -8.0f, 7.0f);
      error += (steps.values[i] - level * scale) * (steps.values[i] - level * scale);
    }
    if (error < least) least = error, best = half;
  }
  return best;
}

// Values of a step from byte `at` of the layout on: in one half of every byte, or two of them in a byte.
enum class Nibbles { low, high, both };
void put_int4(const Steps& steps, int64_t step, float scale, Nibbles where, size_t at, FewIntLayout& layout) {
  for (int64_t i = 0; i < steps.starts[step + 1] - steps.starts[step]; ++i) {
    const int q = quantised(steps.values[steps.starts[step] + i], scale, -8, 7) + 8;
    const size_t byte = at + static_cast<size_t>(where == Nibbles::both ? i / 2 : i);
    const bool is_high = where == Nibbles::high || (where == Nibbles::both && i % 2);
    if (byte >= layout.values.size()) layout.values.resize(byte + 1, 0);
    layout.values[byte] |= static_cast<uint8_t>(is_high ? q << 4 : q);
  }
}

void add_int4(const Steps& steps, FewIntLayout& layout) {
  const int64_t num_steps = layout.shape.steps, span = layout.shape.span;
  std::vector<float> scales;
  for (int64_t first = 0; first < num_steps; first += span) {
    layout.scales.push_back(int4_scale(steps, first, std::min(first + span, num_steps)));
    scales.push_back(from_bf16(layout.scales.back()));
  }
  for (int64_t s = 0; s < num_steps; s += 2) {
    const size_t at = layout.values.size();
    const bool is_pair = s + 1 < num_steps;
    put_int4(steps, s, scales[s / span], is_pair ? Nibbles::low : Nibbles::both, at, layout);
    if (is_pair) put_int4(steps, s + 1, scales[(s + 1) / span], Nibbles::high, at, layout);
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
  layout.scales.resize(layout.scales.size() + kIntSpareScales, 0);
  return layout;
}

FewIntLayout pack_offset_layout(const OffsetWeight& weight) {
  FewIntLayout layout;
  FewIntView& shape = layout.shape;
  shape.rows = weight.rows;
  shape.columns = weight.columns;
  shape.steps = (weight.columns + kIntStep - 1) / kIntStep;
  shape.is_int4 = true;
  shape.has_halves = weight.group == kIntHalf;
  shape.span = std::max<int64_t>(weight.group / kIntStep, 1);
  shape.scales_of_row = weight.groups();
  const auto code = [&](int64_t row, int64_t column) {
    return static_cast<unsigned>(column < weight.columns ? weight.codes[row * weight.columns + column] : 0);
  };
  const auto put = [&](unsigned low, unsigned high) { layout.values.push_back(static_cast<uint8_t>(low | high << 4)); };
  layout.values.reserve(static_cast<size_t>(weight.rows * shape.steps * kIntStep / 2) + kSpareBytes);
  for (int64_t r = 0; r < weight.rows; ++r) {
    if (r % kIntRowUnit == 0) layout.unit_starts.push_back(static_cast<int64_t>(layout.values.size()));
    int64_t first = 0;
    for (; first + 2 * kIntStep <= shape.steps * kIntStep; first += 2 * kIntStep)
      for (int64_t j = first; j < first + kIntStep; ++j) put(code(r, j), code(r, j + kIntStep));
    for (; first < shape.steps * kIntStep; first += 2) put(code(r, first), code(r, first + 1));
  }
  layout.values.resize(layout.values.size() + kSpareBytes, 0);
  const int64_t count = weight.rows * weight.groups();
  layout.scales.assign(weight.scales, weight.scales + count);
  layout.scales.resize(layout.scales.size() + kIntSpareScales, 0);
  layout.offsets.assign(weight.offsets, weight.offsets + count);
  layout.offsets.resize(layout.offsets.size() + kIntSpareScales, 0);
  return layout;
}

FewIntView FewIntLayout::view() const {
  FewIntView view = shape;
  view.masks = masks.empty() ? nullptr : masks.data();
  view.values = values.data();
  view.unit_starts = unit_starts.data();
  view.row_scales = row_scales.data();
  view.scales = scales.data();
  view.offsets = offsets.empty() ? nullptr : offsets.data();
  return view;
}

}  // namespace gossamer
