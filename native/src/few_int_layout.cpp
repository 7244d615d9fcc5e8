// SPDX-License-Identifier: Apache-2.0
#include "gossamer/few_int_layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "gossamer/bf16.hpp"
#include "in_parallel.hpp"
#include "mask_bytes.hpp"

namespace gossamer {
namespace {

// As nearbyint does it, which is a call where SSE4.1 is not taken for granted: numbers up to 1e4 lose their fraction
// when 1.5 x 2^23 is added.
inline float rounded(float v) {
  constexpr float kShift = 12582912.0f;
  return (v + kShift) - kShift;
}

inline int quantised(float v, float scale, int lowest, int highest) {
  if (scale == 0.0f) return 0;
  const float level = rounded(std::clamp(v / scale, -1e4f, 1e4f));
  return static_cast<int>(std::clamp(level, static_cast<float>(lowest), static_cast<float>(highest)));
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

void steps_of_row(const FewIntView& view, int64_t row, const float* value, Steps& steps) {
  steps.values.clear();
  steps.starts.clear();
  for (int64_t s = 0; s < view.steps; ++s) {
    steps.starts.push_back(static_cast<int64_t>(steps.values.size()));
    const int64_t kept = view.masks ? __builtin_popcountll(view.masks[row * view.steps + s])
                                    : std::min(kIntStep, view.columns - s * kIntStep);
    steps.values.insert(steps.values.end(), value, value + kept);
    value += kept;
    if (!view.masks) steps.values.resize(static_cast<size_t>((s + 1) * kIntStep), 0.0f);
  }
  steps.starts.push_back(static_cast<int64_t>(steps.values.size()));
}

float largest_of(const float* values, int64_t count) {
  // Eight at a time: the compiler must not change the order of one, but of eight it makes vectors.
  float largest[8] = {}, most = 0.0f;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; ++j) {
      const float size = std::fabs(values[i + j]);
      largest[j] = largest[j] < size ? size : largest[j];
    }
  for (; i < count; ++i) most = std::max(most, std::fabs(values[i]));
  for (const float each : largest) most = std::max(most, each);
  return most;
}

// A row that keeps everything needs no copy: what its last step lacks are zeros.
void put_int8(const float* values, int64_t count, int64_t stored, float scale, uint8_t* out) {
  if (scale == 0.0f) std::fill_n(out, count, uint8_t{128});
  else
    for (int64_t i = 0; i < count; ++i) {
      const float v = values[i] / scale;
      const float level = rounded(v < -127.0f ? -127.0f : v > 127.0f ? 127.0f : v);
      out[i] = static_cast<uint8_t>(static_cast<int>(level) + 128);
    }
  std::fill(out + count, out + stored, uint8_t{128});
}

// The scale with the least squared error among some: the largest weight is level 4 to 8, or is clipped.
// A group that lies on the levels of a scale already, gets that scale.
uint16_t int4_scale(const Steps& steps, int64_t first, int64_t last) {
  const float largest = largest_of(steps.values.data() + steps.starts[first], steps.starts[last] - steps.starts[first]);
  uint16_t best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (const float divisor : {7.0f, 8.0f, 9.0f, 10.0f, 6.0f, 5.0f, 4.0f}) {
    const uint16_t half = to_bf16(largest / divisor);
    const float scale = from_bf16(half), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    float error = 0.0f;
    for (int64_t i = steps.starts[first]; i < steps.starts[last]; ++i) {
      const float level = std::clamp(rounded(std::clamp(steps.values[i] * inverse, -1e4f, 1e4f)), -8.0f, 7.0f);
      error += (steps.values[i] - level * scale) * (steps.values[i] - level * scale);
    }
    if (error < least) least = error, best = half;
  }
  return best;
}

// Values of a step: in one half of every byte, or two of them in a byte.
enum class Nibbles { low, high, both };
void put_int4(const Steps& steps, int64_t step, float scale, Nibbles where, uint8_t* out) {
  for (int64_t i = 0; i < steps.starts[step + 1] - steps.starts[step]; ++i) {
    const int q = quantised(steps.values[steps.starts[step] + i], scale, -8, 7) + 8;
    const bool is_high = where == Nibbles::high || (where == Nibbles::both && i % 2);
    out[where == Nibbles::both ? i / 2 : i] |= static_cast<uint8_t>(is_high ? q << 4 : q);
  }
}

void put_int4_row(const FewIntView& view, const Steps& steps, uint16_t* scales, uint8_t* out) {
  for (int64_t first = 0; first < view.steps; first += view.span)
    scales[first / view.span] = int4_scale(steps, first, std::min(first + view.span, view.steps));
  const auto scale_of = [&](int64_t s) { return from_bf16(scales[s / view.span]); };
  const auto count_of = [&](int64_t s) { return steps.starts[s + 1] - steps.starts[s]; };
  for (int64_t s = 0; s < view.steps; s += 2) {
    const bool is_pair = s + 1 < view.steps;
    put_int4(steps, s, scale_of(s), is_pair ? Nibbles::low : Nibbles::both, out);
    if (is_pair) put_int4(steps, s + 1, scale_of(s + 1), Nibbles::high, out);
    out += is_pair ? std::max(count_of(s), count_of(s + 1)) : (count_of(s) + 1) / 2;
  }
}

// Bytes of the values of a row.
int64_t row_bytes(const FewIntView& view, int64_t row) {
  if (!view.masks) return view.steps * kIntStep / (view.is_int4 ? 2 : 1);
  const uint64_t* masks = view.masks + row * view.steps;
  int64_t bytes = 0, s = 0;
  for (; view.is_int4 && s + 1 < view.steps; s += 2)
    bytes += std::max(__builtin_popcountll(masks[s]), __builtin_popcountll(masks[s + 1]));
  for (; s < view.steps; ++s) bytes += (__builtin_popcountll(masks[s]) + view.is_int4) / (view.is_int4 ? 2 : 1);
  return bytes;
}

}  // namespace

FewIntCounts few_int_counts(const FewIntView& view) {
  const int64_t scales = view.rows * view.scales_of_row;
  return {view.masks ? view.rows * view.steps : 0, (view.rows + kIntRowUnit - 1) / kIntRowUnit,
          view.is_int4 ? 0 : view.rows, (view.is_int4 ? scales : 0) + kIntSpareScales,
          view.offsets ? scales + kIntSpareScales : 0};
}

FewIntPlaces few_int_places(const FewIntView& view) {
  FewIntPlaces places;
  for (int64_t r = 0; r < view.rows; ++r) {
    if (r % kIntRowUnit == 0) places.unit_starts.push_back(places.end);
    places.end += row_bytes(view, r);
  }
  return places;
}

FewIntLayout pack_few_int_layout(const KeptWeight& weight, bool is_int4, int64_t scale_group, int num_threads) {
  FewIntLayout layout;
  FewIntView& shape = layout.shape;
  shape.rows = weight.rows;
  shape.columns = weight.columns;
  shape.steps = (weight.columns + kIntStep - 1) / kIntStep;
  shape.is_int4 = is_int4;
  const int64_t all = weight.rows * weight.columns;
  const int64_t kept = weight.mask_bits ? count_bits(weight.mask_bits, weight.rows * weight.mask_stride()) : all;
  const double per_step = all ? double(kept) / double(all) * double(kIntStep) : 1.0;
  const double span = std::min(double(scale_group) / std::max(per_step, 1e-9), double(std::max<int64_t>(shape.steps, 1)));
  shape.span = std::max<int64_t>(static_cast<int64_t>(span + 0.5), 1);
  shape.scales_of_row = (shape.steps + shape.span - 1) / shape.span;
  if (kept != all) {
    layout.masks.resize(static_cast<size_t>(weight.rows * shape.steps));
    for (int64_t r = 0; r < weight.rows; ++r)
      for (int64_t s = 0; s < shape.steps; ++s) layout.masks[r * shape.steps + s] = step_mask(weight, r, s);
  }
  FewIntPlaces places = few_int_places(layout.view());
  layout.unit_starts = std::move(places.unit_starts);
  layout.values.resize(static_cast<size_t>(places.end) + kIntSpareBytes, 0);
  layout.row_scales.resize(static_cast<size_t>(is_int4 ? 0 : weight.rows));
  layout.scales.resize(static_cast<size_t>((is_int4 ? weight.rows * shape.scales_of_row : 0) + kIntSpareScales), 0);
  const FewIntView view = layout.view();
  std::vector<int64_t> unit_values;  // kept values before every unit
  for (int64_t r = 0, before = 0; r < weight.rows; ++r) {
    if (r % kIntRowUnit == 0) unit_values.push_back(before);
    before += view.masks ? count_bits(reinterpret_cast<const uint8_t*>(view.masks + r * view.steps), view.steps * 8) : view.columns;
  }
  in_parallel(static_cast<int64_t>(unit_values.size()), num_threads, [&](int64_t unit) {
    Steps steps;
    const float* value = weight.values + unit_values[unit];
    uint8_t* out = layout.values.data() + view.unit_starts[unit];
    for (int64_t r = unit * kIntRowUnit; r < std::min((unit + 1) * kIntRowUnit, weight.rows); ++r) {
      const int64_t bytes = row_bytes(view, r);
      int64_t count = view.columns;
      if (view.masks || is_int4) {
        steps_of_row(view, r, value, steps);
        if (view.masks) count = static_cast<int64_t>(steps.values.size());
      }
      if (is_int4) {
        put_int4_row(view, steps, layout.scales.data() + r * shape.scales_of_row, out);
      } else {
        const float scale = largest_of(value, count) / 127.0f;
        layout.row_scales[r] = scale;
        put_int8(value, count, bytes, scale, out);
      }
      value += count;
      out += bytes;
    }
  });
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
  layout.values.reserve(static_cast<size_t>(weight.rows * shape.steps * kIntStep / 2) + kIntSpareBytes);
  for (int64_t r = 0; r < weight.rows; ++r) {
    if (r % kIntRowUnit == 0) layout.unit_starts.push_back(static_cast<int64_t>(layout.values.size()));
    int64_t first = 0;
    for (; first + 2 * kIntStep <= shape.steps * kIntStep; first += 2 * kIntStep)
      for (int64_t j = first; j < first + kIntStep; ++j) put(code(r, j), code(r, j + kIntStep));
    for (; first < shape.steps * kIntStep; first += 2) put(code(r, first), code(r, first + 1));
  }
  layout.values.resize(layout.values.size() + kIntSpareBytes, 0);
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
