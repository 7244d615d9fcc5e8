// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "gossamer/few_layout.hpp"

namespace gossamer {
namespace {

// Calls visit(row or -1 behind the last, group, slot, word of positions) in the order of the layout;
// the word holds lane % 8 at that lane's bits.
template <class Visit>
void each_slot(const FewView& view, Visit&& visit) {
  const int64_t num_groups = ceil_div(view.columns, view.window), words = view.lanes / 8;
  int64_t word = 0;
  for (int64_t strip = 0; strip < ceil_div(view.rows, view.lanes); ++strip)
    for (int64_t g = 0; g < num_groups; ++g)
      for (int64_t s = 0; s < view.slots; ++s, word += words)
        for (int64_t lane = 0; lane < view.lanes; ++lane) {
          const int64_t row = strip * view.lanes + lane;
          visit(row < view.rows ? row : -1, g, s, strip, lane, (word + lane / 8) * view.position_bits);
        }
}

}  // namespace

FewLayout pack_nm(const KeptWeight& weight, const FewOptions& options, int64_t lanes) {
  FewLayout layout;
  FewView& view = layout.view;
  view.rows = weight.rows;
  view.columns = weight.columns;
  view.type = options.type;
  view.window = options.window;
  view.slots = options.slots;
  view.lanes = lanes;
  view.position_bits = nm_position_bits(options.window);
  view.scale_span = options.scale_group;
  const int64_t num_groups = ceil_div(weight.columns, view.window), num_slots = num_groups * view.slots;
  const int64_t num_strips = ceil_div(weight.rows, lanes);
  // Kept values of every row as [group][slot]; a group that keeps fewer is filled with zeros on its
  // first kept column.
  std::vector<float> values(static_cast<size_t>(weight.rows * num_slots), 0.0f);
  std::vector<uint8_t> positions(values.size(), 0);
  for (int64_t r = 0; r < weight.rows; ++r)
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t at = r * num_slots + g * view.slots;
      int64_t count = 0;
      for (int64_t k = g * view.window; k < (g + 1) * view.window && k < weight.columns; ++k) {
        if (!weight.keeps(r, k)) continue;
        values[at + count] = weight.values[layout.kept++];
        positions[at + count++] = static_cast<uint8_t>(k - g * view.window);
      }
      layout.is_exact &= count == view.slots;
      for (; count < view.slots; ++count) positions[at + count] = positions[at];
    }

  const int64_t scales_of_strip = ceil_div(num_slots, view.scale_span);
  const bool is_int4 = options.type == ValueType::int4;
  StoredValues stored;
  stored.num_scales = num_strips * lanes * (is_int4 ? scales_of_strip : 1);
  layout.positions.assign(
      static_cast<size_t>(num_strips * num_slots * lanes / 8 * view.position_bits + kNmSparePositions), 0);
  each_slot(view, [&](int64_t row, int64_t g, int64_t s, int64_t strip, int64_t lane, int64_t byte) {
    const int64_t slot = g * view.slots + s, from = row * num_slots + slot;
    stored.add(row < 0 ? 0.0f : values[from],
               is_int4 ? (strip * scales_of_strip + slot / view.scale_span) * lanes + lane : strip * lanes + lane);
    uint64_t word = 0;
    std::memcpy(&word, layout.positions.data() + byte, static_cast<size_t>(view.position_bits));
    if (row >= 0) word |= uint64_t{positions[from]} << (lane % 8 * view.position_bits);
    std::memcpy(layout.positions.data() + byte, &word, static_cast<size_t>(view.position_bits));
  });
  encode_values(stored, layout);
  return layout;
}

void unpack_nm(const FewView& view, float* values, uint8_t* mask_bits) {
  const int64_t stride = (view.columns + 7) / 8, per_row = ceil_div(view.columns, view.window) * view.slots;
  const uint8_t* value = view.values;
  each_slot(view, [&](int64_t row, int64_t g, int64_t s, int64_t, int64_t lane, int64_t byte) {
    uint64_t word = 0;
    std::memcpy(&word, view.positions + byte, static_cast<size_t>(view.position_bits));
    const int64_t position = word >> (lane % 8 * view.position_bits) & ((1 << view.position_bits) - 1);
    const int64_t k = g * view.window + position;
    if (row >= 0) {
      mask_bits[row * stride + (k >> 3)] |= static_cast<uint8_t>(1u << (k & 7));
      std::memcpy(values + row * per_row + g * view.slots + s, value, 4);
    }
    value += 4;
  });
}

}  // namespace gossamer
