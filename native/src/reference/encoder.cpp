// SPDX-License-Identifier: Apache-2.0
// The specification of the encoder's kernels: plain loops, no intrinsics.
#include "gossamer/encoder.hpp"

#include <algorithm>
#include <cmath>

#include "gossamer/bf16.hpp"
#include "reference/activation.hpp"
#include "reference/quantise.hpp"

namespace gossamer::reference {
namespace {

constexpr int64_t W = kTileTokens;

void add_block(const PanelView& view, int64_t part, int64_t b, const float* slab, float* out, const float* bias, int64_t) {
  const int64_t row0 = part * view.tile_rows, last = row0 + rows_of_tile(view, part);
  for (int64_t i = row0 * W; b == 0 && i < last * W; ++i) out[i] = bias[i / W];
  const PanelBlock& block = view.blocks[part * view.num_blocks + b];
  int64_t slot = block.first_value;
  for (int64_t i = block.first_row; i < block.first_row + block.num_rows; ++i) {
    float* y = out + (row0 + view.row_ids[i]) * W;
    for (int64_t j = 0; j < view.row_counts[i]; ++j, ++slot) {
      const float* x = slab + view.offsets[slot] / kOffsetUnit * W;
      for (int64_t t = 0; t < W; ++t) y[t] += view.values[slot] * x[t];
    }
  }
}

void linear(const PanelView& view, int64_t part, const float* in, float* out, const float* bias, Activation activation,
            int64_t tokens) {
  const int64_t row0 = part * view.tile_rows, last = row0 + rows_of_tile(view, part);
  for (int64_t i = row0 * W; view.num_blocks == 0 && i < last * W; ++i) out[i] = bias[i / W];
  for (int64_t b = 0; b < view.num_blocks; ++b)
    add_block(view, part, b, in + b * view.block_columns * W, out, bias, tokens);
  for (int64_t i = row0 * W; i < last * W; ++i) out[i] = activate(out[i], activation);
}

void add_norm(float* x, const float* delta, const NormView& norm, float* out, int64_t) {
  for (int64_t i = 0; delta && i < norm.features * W; ++i) x[i] += delta[i];
  for (int64_t t = 0; t < W; ++t) {
    float mean = 0.0f, spread = 0.0f;
    for (int64_t k = 0; k < norm.features; ++k) mean += x[k * W + t];
    mean /= static_cast<float>(norm.features);
    for (int64_t k = 0; k < norm.features; ++k) spread += (x[k * W + t] - mean) * (x[k * W + t] - mean);
    spread = std::sqrt(spread / static_cast<float>(norm.features) + norm.epsilon);
    for (int64_t k = 0; k < norm.features; ++k)
      out[k * W + t] = (x[k * W + t] - mean) / spread * norm.gain[k] + norm.shift[k];
  }
}

void gate(float* panel, int64_t rows, Activation activation, int64_t) {
  const int64_t half = rows / 2 * W;
  for (int64_t i = 0; i < half; ++i) panel[i] = activate(panel[i], activation) * panel[half + i];
}

void rotate(float* panel, int64_t heads, int64_t width, const float* turns) {
  const int64_t half = width / 2 * W;
  for (int64_t h = 0; h < heads; ++h, panel += width * W)
    for (int64_t i = 0; i < half; ++i) {
      const float a = panel[i], b = panel[half + i], cosine = turns[i], sine = turns[half + i];
      panel[i] = a * cosine - b * sine;
      panel[half + i] = b * cosine + a * sine;
    }
}

float at(const Panels& panels, int64_t feature, int64_t token) {
  return panels.tile(token / W)[feature * W + token % W];
}

void attend(const AttentionCall& call, float* chances) {
  for (int64_t i = 0; i < call.num_tokens; ++i) {
    float top = -INFINITY, sum = 0.0f;
    const auto [first, last] = keys_seen(call, i, 1);
    for (int64_t j = first; j < last; ++j) {
      float score = 0.0f;
      for (int64_t e = 0; e < call.head_width; ++e)
        score += at(call.from, call.query + e, call.first_token + i) * at(call.from, call.key + e, call.first_token + j);
      chances[j] = score * call.scale + (call.bias ? call.bias[i - j] : 0.0f);
      top = std::max(top, chances[j]);
    }
    for (int64_t j = first; j < last; ++j) sum += chances[j] = std::exp(chances[j] - top);
    const int64_t token = call.first_token + i;
    for (int64_t e = 0; e < call.head_width; ++e) {
      float mixed = 0.0f;
      for (int64_t j = first; j < last; ++j) mixed += chances[j] * at(call.from, call.value + e, call.first_token + j);
      call.into.tile(token / W)[(call.mixed + e) * W + token % W] = mixed / sum;
    }
  }
}

void to_panel(const float* x, int64_t stride, int64_t tokens, int64_t features, float* panel) {
  for (int64_t k = 0; k < features; ++k)
    for (int64_t t = 0; t < W; ++t) panel[k * W + t] = t < tokens ? x[t * stride + k] : 0.0f;
}

void from_panel(const float* panel, int64_t tokens, int64_t features, float* y, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t k = 0; k < features; ++k) y[t * stride + k] = panel[k * W + t];
}

// [column][token], in natural order.
void quantise(const Int8View& view, const float* in, uint8_t* bytes, float* token_scales, int64_t) {
  for (int64_t t = 0; t < W; ++t) {
    uint32_t largest = 0;
    for (int64_t k = 0; k < view.columns; ++k) largest = std::max(largest, largest_of(in + k * W + t, 1));
    const TokenScale token = token_scale(largest, view);
    token_scales[t] = token.scale;
    for (int64_t k = 0; k < view.columns; ++k)
      quantise_run(in + k * W + t, 1, token.inverse, view.activation_bits, bytes + k * W + t);
    for (int64_t k = view.columns; k < padded_columns(view); ++k)
      bytes[k * W + t] = static_cast<uint8_t>(activation_offset(view.activation_bits));
  }
}

void int8_linear(const Int8View& view, int64_t part, const uint8_t* bytes, const float* token_scales, float* out,
                 const float* bias, Activation activation, int64_t) {
  for (int64_t t = 0; t < W; ++t) {
    float* y = out + part * view.tile_rows * W + t;
    for (int64_t row = 0; row < rows_of_tile(view, part); ++row) {
      const int64_t r = part * view.tile_rows + row;
      uint32_t sum = static_cast<uint32_t>(view.row_starts[r]);
      for (int64_t b = 0; b < view.num_blocks; ++b) {
        const DwordBlock& block = view.blocks[part * view.num_blocks + b];
        int64_t quad = block.first_dword;
        for (int64_t i = block.first_row; i < block.first_row + block.num_rows; quad += view.row_dwords[i++]) {
          if (view.row_ids[i] != row) continue;
          for (int64_t j = quad; j < quad + view.row_dwords[i]; ++j)
            for (int lane = 0; lane < 4; ++lane) {
              const bool any = view.form != DwordForm::neighbours;
              const int64_t unit = view.form == DwordForm::image ? W : kDwordOffsetUnit;
              const int64_t offset = any ? view.offsets[j * 4 + lane] : view.offsets[j] + lane * unit;
              const int64_t column = b * view.block_columns + offset / unit;
              sum += static_cast<uint32_t>(weight_of(view, j, lane) * bytes[column * W + t]);
            }
        }
      }
      const float v = std::fma(static_cast<float>(static_cast<int32_t>(sum)), token_scales[t] * view.row_scales[r], bias[r]);
      y[row * W] = activate(v, activation);
    }
  }
}

const PanelShape shapes[] = {{0, 96, 1}};

}  // namespace

const EncoderKernels encoder_kernels = {linear, add_block, add_norm, gate, rotate, attend, to_panel, from_panel, shapes};
const EncoderInt8Kernels encoder_int8_kernels = {quantise, int8_linear, nullptr};

}  // namespace gossamer::reference
