// SPDX-License-Identifier: Apache-2.0
// The specification of the panel kernel: plain loops over the layout, no intrinsics.
#include "gossamer/bf16.hpp"
#include "gossamer/panel.hpp"
#include "reference/activation.hpp"

namespace gossamer::reference {
namespace {

float value_at(const PanelView& view, int64_t slot) {
  return view.values ? view.values[slot] : from_bf16(view.bf16_values[slot]);
}

void panel(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
           int64_t last_tile, float* scratch) {
  for (int64_t t = 0; t < tile.num_tokens; ++t) {
    const float* x = call.x + (tile.first + t) * call.x_stride;
    float* y = call.y + (tile.first + t) * call.y_stride;
    for (int64_t part = first_tile; part < last_tile; ++part) {
      const int64_t row0 = part * view.tile_rows;
      for (int64_t i = 0; i < accumulator_rows(view); ++i)
        scratch[i] = call.bias && i < rows_of_tile(view, part) ? call.bias[row0 + i] : 0.0f;
      for (int64_t b = 0; b < view.num_blocks; ++b) {
        const PanelBlock& block = view.blocks[part * view.num_blocks + b];
        int64_t at = block.first_value;
        for (int64_t i = 0; i < block.num_rows; i += view.group_rows) {
          const uint16_t* ids = view.row_ids + block.first_row + i;
          const uint16_t* counts = view.row_counts + block.first_row + i;
          for (int64_t g = 0; g < view.group_rows; ++g) {
            float sum = scratch[ids[g]];
            for (int64_t j = 0; j < counts[g]; ++j) {
              const int64_t slot = at + j * view.group_rows + g;
              sum += value_at(view, slot) * x[b * view.block_columns + view.offsets[slot] / kOffsetUnit];
            }
            scratch[ids[g]] = sum;
          }
          at += counts[0] * view.group_rows;
        }
      }
      for (int64_t i = 0; i < rows_of_tile(view, part); ++i)
        y[row0 + i] = activate(scratch[i], call.activation);
    }
  }
}

volatile float sink;

double fma(int64_t repeats) {
  float a[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int64_t i = 0; i < repeats; ++i)
    for (float& v : a) v = v * 0.999f + 0.5f;
  for (float v : a) sink = v;
  return 16.0 * static_cast<double>(repeats);
}

double mix(int64_t repeats) {
  static float slab[96 * 8];
  float a[8] = {};
  for (int64_t i = 0; i < repeats; ++i) {
    const float* row = slab + (i * 37 % 96) * 8;
    for (int q = 0; q < 8; ++q) a[q] += 0.5f * row[q];
  }
  for (float v : a) sink = v;
  return 16.0 * static_cast<double>(repeats);
}

const int widths[] = {1, 0};
const PanelShape shapes[] = {{0, 96, 1}};

}  // namespace

const PanelKernels panel_kernels = {panel, widths, shapes, {fma, mix}};

}  // namespace gossamer::reference
