// SPDX-License-Identifier: Apache-2.0
// The specification of the int8 kernels: plain loops over the layout, no intrinsics.
#include "gossamer/int8.hpp"
#include "reference/activation.hpp"
#include "reference/quantise.hpp"

namespace gossamer::reference {
namespace {

// Quantised activations of one token, as kernels store them; returns its scale.
float quantise(const Int8View& view, const float* x, uint8_t* q) {
  const TokenScale token = token_scale(largest_of(x, view.columns), view);
  quantise_run(x, view.columns, token.inverse, view.activation_bits, q);
  for (int64_t k = view.columns; k < padded_columns(view); ++k)
    q[k] = static_cast<uint8_t>(activation_offset(view.activation_bits));
  return token.scale;
}

int32_t dot_quad(const Int8View& view, int64_t quad, const uint8_t* slab) {
  int32_t sum = 0;
  for (int i = 0; i < 4; ++i) {
    const int64_t column = view.form == DwordForm::panel ? view.offsets[quad * 4 + i] / kDwordOffsetUnit
                                                         : view.offsets[quad] / kDwordOffsetUnit + i;
    sum += weight_of(view, quad, i) * slab[column];
  }
  return sum;
}

void run(const Int8View& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
         int64_t last_tile, void* scratch) {
  auto* q = static_cast<uint8_t*>(scratch);
  for (int64_t t = 0; t < tile.num_tokens; ++t) {
    const float scale = quantise(view, call.x + (tile.first + t) * call.x_stride, q);
    float* y = call.y + (tile.first + t) * call.y_stride;
    for (int64_t part = first_tile; part < last_tile; ++part) {
      const int64_t row0 = part * view.tile_rows;
      // Unsigned: sums may wrap on the way, as they do in the kernels; the last one is right.
      auto* sums = reinterpret_cast<uint32_t*>(q + 2 * padded_columns(view));
      for (int64_t i = 0; i < rows_of_tile(view, part); ++i)
        sums[i] = static_cast<uint32_t>(view.row_starts[row0 + i]);
      for (int64_t b = 0; b < view.num_blocks; ++b) {
        const DwordBlock& block = view.blocks[part * view.num_blocks + b];
        int64_t quad = block.first_dword;
        for (int64_t i = block.first_row; i < block.first_row + block.num_rows; ++i)
          for (int64_t j = 0; j < view.row_dwords[i]; ++j)
            sums[view.row_ids[i]] += static_cast<uint32_t>(dot_quad(view, quad++, q + b * view.block_columns));
      }
      for (int64_t i = 0; i < rows_of_tile(view, part); ++i) {
        const float bias = call.bias ? call.bias[row0 + i] : 0.0f;
        const auto sum = static_cast<float>(static_cast<int32_t>(sums[i]));
        // Scales first: sum * scale could overflow where y does not. fma, as the kernels round.
        const float v = std::fma(sum, scale * view.row_scales[row0 + i], bias);
        y[row0 + i] = activate(v, call.activation);
      }
    }
  }
}

volatile int32_t sink;

double mix(int64_t repeats) {
  static uint8_t x[64];
  int32_t sum = 0;
  for (int64_t i = 0; i < repeats; ++i)
    for (int q = 0; q < 4; ++q) sum += x[(i + q * 7) % 64] * (q - 2);
  sink = sum;
  return 8.0 * static_cast<double>(repeats);
}

const int widths[] = {1, 0};

}  // namespace

const Int8Kernels int8_kernels = {run, widths, {384, 384}, 8, PairRule::none, mix, mix};

}  // namespace gossamer::reference
