// SPDX-License-Identifier: Apache-2.0
// The bf16 kernels: round and turn the tokens, add up pairs (dword_kernel.hpp).
#pragma once
#include "gossamer/bf16_pairs.hpp"
#include "simd/bf16_turn.hpp"
#include "simd/dword_kernel.hpp"

namespace gossamer {

template <class V, int H, int SETS, DwordForm FORM>
void bf16_tile(const Bf16View& view, const LinearCall& call, TokenTile tokens, int64_t first_tile, int64_t last_tile,
               void* scratch) {
  constexpr int kWidth = kDwordWidth<V, H>, kLanes = V::kBytes / 4;
  uint8_t* x = static_cast<uint8_t*>(scratch);
  float* tile = reinterpret_cast<float*>(x + padded_bf16_columns(view) * kWidth * 2);
  round_tokens<V, kWidth>(view, call, tokens, x);
  for (int64_t part = first_tile; part < last_tile; ++part) {
    const float* bias = call.bias ? call.bias + part * view.tile_rows : nullptr;
    for (int64_t b = 0; b < view.num_blocks; ++b) {
      const auto start = [=](int64_t id, const float* row, int q) __attribute__((always_inline)) {
        return b ? V::load_sum(row + q * kLanes) : V::broadcast(bias ? bias[id] : 0.0f);
      };
      const auto store = [](int64_t, float* row, int q, typename V::Float sum) __attribute__((always_inline)) {
        V::store(row + q * kLanes, sum);
      };
      add_dwords<V, H, FORM, SETS>(view, view.blocks[part * view.num_blocks + b],
                                   x + b * view.block_columns * kWidth * 2, tile, start, store);
    }
    finish_dwords<kWidth>(view, call, tokens, part, tile);
  }
}

// Runs the kernel of V for either form.
template <class V, int H, int SETS>
void bf16_forms(const Bf16View& view, const LinearCall& call, TokenTile tokens, int64_t first_tile, int64_t last_tile,
                void* scratch) {
  const auto run = view.form == DwordForm::panel ? bf16_tile<V, H, SETS, DwordForm::panel>
                                                 : bf16_tile<V, H, SETS, DwordForm::neighbours>;
  run(view, call, tokens, first_tile, last_tile, scratch);
}

}  // namespace gossamer
