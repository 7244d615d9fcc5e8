// SPDX-License-Identifier: Apache-2.0
// The specification of the bf16 kernels: plain loops over the layout, no intrinsics.
#include "gossamer/bf16_pairs.hpp"

#include "gossamer/bf16.hpp"
#include "reference/activation.hpp"

namespace gossamer::reference {
namespace {

float add_pair(const Bf16View& view, int64_t pair, const uint16_t* slab, float sum) {
  for (int i = 0; i < 2; ++i) {
    const int64_t column = view.form == DwordForm::panel ? view.offsets[pair * 2 + i] / kDwordOffsetUnit
                                                         : view.offsets[pair] / kDwordOffsetUnit + i;
    const auto weight = static_cast<uint16_t>(static_cast<uint32_t>(view.weights[pair]) >> (16 * i));
    sum += from_bf16(weight) * from_bf16(slab[column]);
  }
  return sum;
}

void run(const Bf16View& view, const LinearCall& call, TokenTile tile, int64_t first_tile, int64_t last_tile,
         void* scratch) {
  auto* x = static_cast<uint16_t*>(scratch);
  auto* sums = reinterpret_cast<float*>(x + padded_bf16_columns(view));
  for (int64_t t = 0; t < tile.num_tokens; ++t) {
    const float* from = call.x + (tile.first + t) * call.x_stride;
    for (int64_t k = 0; k < padded_bf16_columns(view); ++k) x[k] = k < view.columns ? to_bf16(from[k]) : 0;
    float* y = call.y + (tile.first + t) * call.y_stride;
    for (int64_t part = first_tile; part < last_tile; ++part) {
      const int64_t row0 = part * view.tile_rows;
      for (int64_t i = 0; i < rows_of_tile(view, part); ++i) sums[i] = call.bias ? call.bias[row0 + i] : 0.0f;
      for (int64_t b = 0; b < view.num_blocks; ++b) {
        const DwordBlock& block = view.blocks[part * view.num_blocks + b];
        int64_t pair = block.first_dword;
        for (int64_t i = block.first_row; i < block.first_row + block.num_rows; ++i) {
          float& sum = sums[view.row_ids[i]];
          for (int64_t j = 0; j < view.row_dwords[i]; ++j)
            sum = add_pair(view, pair++, x + b * view.block_columns, sum);
        }
      }
      for (int64_t i = 0; i < rows_of_tile(view, part); ++i) y[row0 + i] = activate(sums[i], call.activation);
    }
  }
}

volatile float sink;

double mix(int64_t repeats) {
  static uint16_t x[64];
  float sum = 0.0f;
  for (int64_t i = 0; i < repeats; ++i)
    for (int q = 0; q < 2; ++q) sum += from_bf16(x[(i + q * 7) % 64]) * 0.5f;
  sink = sum;
  return 4.0 * static_cast<double>(repeats);
}

const int widths[] = {1, 0};

}  // namespace

const Bf16Kernels bf16_kernels = {run, widths, {192, 192}, mix, mix};

}  // namespace gossamer::reference
