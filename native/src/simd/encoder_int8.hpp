// SPDX-License-Identifier: Apache-2.0
// int8 products from panel to panel. A panel is feature-major already, so quantising it is one walk down the
// columns for the largest values and one for the bytes; nothing is turned.
#pragma once
#include "gossamer/encoder.hpp"
#include "simd/activate_tokens.hpp"
#include "simd/int8_kernel.hpp"

namespace gossamer {

// Q vectors of tokens at once, from the first on.
template <class V, int Q>
void largest_of_tokens(const Int8View& view, const float* in, uint32_t* largest, int64_t vectors) {
  constexpr int kLanes = V::kBytes / 4;
  for (int64_t t = 0; t < vectors; t += Q) {
    typename V::Int top[Q] = {};
    for (int64_t k = 0; k < view.columns; ++k)
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) top[q] = V::larger_bits(top[q], in + k * kTileTokens + (t + q) * kLanes);
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) V::store(static_cast<void*>(largest + (t + q) * kLanes), top[q]);
  }
}

// Neighbours of a short sequence: vectors without a token are left out.
template <class V>
void encoder_quantise(const Int8View& view, const float* in, uint8_t* bytes, float* token_scales, int64_t tokens) {
  constexpr int kLanes = V::kBytes / 4, kVectors = kTileTokens / kLanes;
  const bool is_panel = view.form == DwordForm::panel;
  const int64_t vectors = is_panel ? kVectors : (tokens + kLanes - 1) / kLanes;
  alignas(64) uint32_t largest[kTileTokens] = {};
  alignas(64) float inverse[kTileTokens];
  const auto find = vectors > 2 ? largest_of_tokens<V, 4> : vectors > 1 ? largest_of_tokens<V, 2> : largest_of_tokens<V, 1>;
  find(view, in, largest, vectors);
  for (int t = 0; t < kTileTokens; ++t) {
    const TokenScale token = token_scale(largest[t], view);
    token_scales[t] = token.scale;
    inverse[t] = token.inverse;
  }
  const float limit = static_cast<float>(activation_limit(view.activation_bits));
  const int offset = activation_offset(view.activation_bits);
  if (is_panel) {
    for (int64_t k = 0; k < view.columns; ++k)
      for (int t = 0; t < kVectors; t += 4) {
        typename V::Int v[4];
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q)
          v[q] = V::rounded(in + k * kTileTokens + (t + q) * kLanes, inverse + (t + q) * kLanes, limit);
        V::store(static_cast<void*>(bytes + k * kTileTokens + t * kLanes), V::bytes_of(v, offset));
      }
    return;
  }
  for (int64_t k = 0; k < view.columns; k += 4)
    for (int64_t t = 0; t < vectors; ++t) {
      typename V::Int v[4] = {};  // columns behind the last one are zeros
      for (int64_t i = 0; i < 4 && k + i < view.columns; ++i)
        v[i] = V::rounded(in + (k + i) * kTileTokens + t * kLanes, inverse + t * kLanes, limit);
      V::store(static_cast<void*>(bytes + k * kTileTokens + t * V::kBytes), V::dwords_of(v, offset));
    }
}

template <class V, int H>
void encoder_int8_linear(const Int8View& view, int64_t part, const uint8_t* bytes, const float* token_scales,
                         float* out, const float* bias, Activation activation, int64_t tokens) {
  static_assert(kDwordWidth<V, H> == kTileTokens);
  const auto run = view.form == DwordForm::panel   ? int8_row_tile<V, H, DwordForm::panel>
                   : view.form == DwordForm::image ? int8_row_tile<V, H, DwordForm::image>
                                                   : int8_row_tile<V, H, DwordForm::neighbours>;
  float* tile = out + part * view.tile_rows * kTileTokens;
  run(view, part, bytes, view.block_columns * kTileTokens, tile, bias, token_scales);
  activate_tokens(tile, rows_of_tile(view, part), activation, tokens);
}

}  // namespace gossamer
