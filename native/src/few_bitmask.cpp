// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "few_value.hpp"
#include "gossamer/few_layout.hpp"
#include "mask_bytes.hpp"

namespace gossamer {

FewLayout pack_bitmask(const KeptWeight& weight, const FewOptions& options) {
  FewLayout layout;
  FewView& view = layout.view;
  view.rows = weight.rows;
  view.columns = weight.columns;
  view.type = options.type;
  view.mask_stride = ceil_div(weight.columns, kFewStep) * (kFewStep / 8);
  layout.positions.assign(static_cast<size_t>(weight.rows * view.mask_stride), 0);
  layout.row_starts.push_back(0);
  // Scales belong to columns here, so that a step has one of them: as many columns as keep about
  // scale_group values.
  const int64_t kept = count_bits(weight.mask_bits, weight.rows * weight.mask_stride());
  const double density = kept ? double(kept) / (double(weight.rows) * double(weight.columns)) : 1.0;
  const double span = std::min(double(options.scale_group) / density, double(weight.columns));
  view.scale_span = std::max<int64_t>(static_cast<int64_t>(span / kFewStep + 0.5), 1) * kFewStep;
  const int64_t scales_of_row = ceil_div(weight.columns, view.scale_span);
  const bool is_int4 = options.type == ValueType::int4;

  StoredValues stored;
  stored.num_scales = is_int4 ? weight.rows * scales_of_row : weight.rows;
  const float* value = weight.values;
  for (int64_t r = 0; r < weight.rows; ++r) {
    if (weight.mask_stride())
      std::memcpy(layout.positions.data() + r * view.mask_stride, weight.mask_bits + r * weight.mask_stride(),
                  static_cast<size_t>(weight.mask_stride()));
    int64_t scale = r;
    for (int64_t k = 0; k < weight.columns; ++k) {
      if (!weight.keeps(r, k)) continue;
      scale = is_int4 ? r * scales_of_row + k / view.scale_span : r;
      stored.add(*value++, scale);
    }
    if (is_int4 && stored.values.size() % 2) stored.add(0.0f, scale);  // rows start at a byte
    layout.row_starts.push_back(static_cast<int64_t>(stored.values.size()));
  }
  layout.kept = kept;
  encode_values(stored, layout);
  return layout;
}

void unpack_bitmask(const FewView& view, float* values, uint8_t* mask_bits) {
  const int64_t stride = (view.columns + 7) / 8;
  for (int64_t r = 0; r < view.rows && stride; ++r)
    std::memcpy(mask_bits + r * stride, view.positions + r * view.mask_stride,
                static_cast<size_t>(stride));
  if (const int64_t kept = view.row_starts[view.rows]) std::memcpy(values, view.values, static_cast<size_t>(kept) * 4);
}

void read_bitmask_row(const FewView& view, int64_t row, float* out) {
  const int64_t scales = row * ceil_div(view.columns, view.scale_span);
  int64_t at = view.row_starts[row];
  for (int64_t k = 0; k < view.columns; ++k) {
    const bool keeps = view.positions[row * view.mask_stride + k / 8] >> (k % 8) & 1;
    out[k] = keeps ? stored_value(view, at++) * scale_of(view, scales + k / view.scale_span) : 0.0f;
    if (view.type == ValueType::int8) out[k] *= view.row_scales[row];
  }
}

}  // namespace gossamer
