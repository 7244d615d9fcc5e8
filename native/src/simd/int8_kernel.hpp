// SPDX-License-Identifier: Apache-2.0
// The int8 kernels: quantise, add up dwords (dword_kernel.hpp), scale. Of V they also need
//   V::scaled(sum, const float* token_scales, row_scale, bias),
//   V::store_natural(float* row, int q, Float)   for images: the q-th vector of interleaved pixels
//                                                back to where they were
#pragma once
#include "gossamer/int8.hpp"
#include "simd/dword_kernel.hpp"
#include "simd/int8_quantise.hpp"

namespace gossamer {

// All column blocks of one row tile, whose slabs are `slab_bytes` apart. Accumulators are int32; with
// the last block they become y before its activation, float32.
template <class V, int H, DwordForm FORM>
void int8_row_tile(const Int8View& view, int64_t part, const uint8_t* slabs, int64_t slab_bytes, float* tile,
                   const float* all_bias, const float* token_scales) {
  constexpr int kLanes = V::kBytes / 4;
  const int64_t row0 = part * view.tile_rows;
  const float* bias = all_bias ? all_bias + row0 : nullptr;
  for (int64_t b = 0; b < view.num_blocks; ++b) {
    const int32_t* row_starts = b == 0 ? view.row_starts + row0 : nullptr;
    const float* row_scales = b == view.num_blocks - 1 ? view.row_scales + row0 : nullptr;
    const auto start = [=](int64_t id, const float* row, int q) __attribute__((always_inline)) {
      return row_starts ? V::broadcast(row_starts[id]) : V::load_sum(row + q * kLanes);
    };
    const auto store = [=](int64_t id, float* row, int q, typename V::Int sum) __attribute__((always_inline)) {
      if (!row_scales) return V::store(row + q * kLanes, sum);
      const auto y = V::scaled(sum, token_scales + q * kLanes, V::broadcast(row_scales[id]),
                               V::broadcast(bias ? bias[id] : 0.0f));
      if constexpr (FORM == DwordForm::image)
        V::store_natural(row, q, y);
      else
        V::store(row + q * kLanes, y);
    };
    add_dwords<V, H, FORM, 1>(view, view.blocks[part * view.num_blocks + b], slabs + b * slab_bytes, tile, start,
                              store);
  }
}

template <class V, int H, DwordForm FORM>
void int8_tile(const Int8View& view, const LinearCall& call, TokenTile tokens, int64_t first_tile,
               int64_t last_tile, void* scratch) {
  constexpr int kWidth = kDwordWidth<V, H>;
  const int64_t bytes = padded_columns(view) * kWidth;
  uint8_t* x = static_cast<uint8_t*>(scratch);
  float* tile = reinterpret_cast<float*>(x + 2 * bytes);
  float* token_scales = tile + view.tile_rows * kWidth;
  quantise_tokens<V::kBytes / 16>(view, call, tokens, x, x + bytes, token_scales);
  for (int64_t part = first_tile; part < last_tile; ++part) {
    int8_row_tile<V, H, FORM>(view, part, x, view.block_columns * kWidth, tile, call.bias, token_scales);
    finish_dwords<kWidth>(view, call, tokens, part, tile);
  }
}

// Runs the kernel of V for either form of tokens.
template <class V, int H>
void int8_forms(const Int8View& view, const LinearCall& call, TokenTile tokens, int64_t first_tile,
                int64_t last_tile, void* scratch) {
  const auto run = view.form == DwordForm::panel ? int8_tile<V, H, DwordForm::panel>
                                                 : int8_tile<V, H, DwordForm::neighbours>;
  run(view, call, tokens, first_tile, last_tile, scratch);
}

}  // namespace gossamer
