// SPDX-License-Identifier: Apache-2.0
// The int8 kernels, once, over a vector type V that the files of the instruction sets supply:
//   V::Int, V::Float, V::kBytes, V::load(const void*), V::store(void*, Int), V::add32(a, b),
//   V::broadcast(int32_t), V::broadcast(float),
//   V::low8(a, b), V::high8, V::low16, V::high16   interleave inside 128-bit lanes,
//   V::dot(sum, x, w)              sum32 += the four products of each dword,
//   V::dot2(sum, x0, w0, x1, w1)   the same for two quads that may be added in 16 bits,
//   V::scaled(sum, const float* token_scales, row_scale, bias), V::store(float*, Float),
//   V::loadu(const void*), V::store_natural(float* row, int q, Float)   for images, see natural_lane
#pragma once
#include <immintrin.h>

#include "gossamer/int8.hpp"
#include "simd/activation.hpp"
#include "simd/int8_quantise.hpp"
#include "simd/transpose8.hpp"

namespace gossamer {

// The x of one quad for the h-th run of V::kBytes tokens, as four vectors of dwords.
//
// The panel form interleaves first and multiplies four by four. Multiplying pairs of columns,
// adding pairs in 16 bits and interleaving those sums needs a third fewer shuffles, but ran no
// faster with 64 tokens (16 registers are not enough for it) and 8 % faster with 32.
template <class V, int H, Int8Form FORM>
struct QuadSource {
  static constexpr int kScale = FORM == Int8Form::image ? 1 : H * V::kBytes / kInt8OffsetUnit;
  static constexpr int kOffsets = quad_offsets(FORM);
  const char* slab;
  size_t at[kOffsets];  // not pointers: addressing scales by 2 for free

  __attribute__((always_inline)) QuadSource(const char* base, const uint16_t* offset) : slab(base) {
#pragma GCC unroll 4
    for (int i = 0; i < kOffsets; ++i) at[i] = offset[i];
  }
  __attribute__((always_inline)) typename V::Int vector(int i, int v) const {
    const char* from = slab + at[i] * kScale + v * V::kBytes;
    return FORM == Int8Form::image ? V::loadu(from) : V::load(from);
  }
  __attribute__((always_inline)) void load(int h, typename V::Int x[4]) const {
    if constexpr (FORM == Int8Form::quad) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) x[i] = vector(0, h * 4 + i);
    } else {
      const auto a = vector(0, h), b = vector(1, h), c = vector(2, h), d = vector(3, h);
      const auto ab0 = V::low8(a, b), ab1 = V::high8(a, b), cd0 = V::low8(c, d), cd1 = V::high8(c, d);
      x[0] = V::low16(ab0, cd0);
      x[1] = V::high16(ab0, cd0);
      x[2] = V::low16(ab1, cd1);
      x[3] = V::high16(ab1, cd1);
    }
  }
};

static inline int32_t four_weights(const int8_t* weights) {
  int32_t word;
  __builtin_memcpy(&word, weights, sizeof word);
  return word;
}

// Adds one column block to the accumulators of a row tile, tile[row][width] int32; with the last
// block they become y before its activation, float32.
template <class V, int H, Int8Form FORM>
void add_int8_block(const Int8View& view, const Int8Block& block, const uint8_t* slab_bytes, float* tile,
                    const int32_t* row_starts, const float* row_scales, const float* bias,
                    const float* token_scales) {
  constexpr int kWidth = H * V::kBytes, kLanes = V::kBytes / 4;
  constexpr int kOffsets = quad_offsets(FORM);
  const char* slab = reinterpret_cast<const char*>(slab_bytes);
  const int8_t* weight = view.weights + block.first_quad * 4;
  const uint16_t* offset = view.offsets + block.first_quad * kOffsets;
  for (int64_t i = block.first_row; i < block.first_row + block.num_rows; ++i) {
    const int64_t id = view.row_ids[i];
    float* row = tile + id * kWidth;
    typename V::Int sum[4 * H];
#pragma GCC unroll 8
    for (int q = 0; q < 4 * H; ++q)
      sum[q] = row_starts ? V::broadcast(row_starts[id]) : V::load(row + q * kLanes);
    const float* next = tile + static_cast<int64_t>(view.row_ids[i + 1]) * kWidth;
#pragma GCC unroll 8
    for (int line = 0; line < kWidth; line += 16) _mm_prefetch(reinterpret_cast<const char*>(next + line), _MM_HINT_T0);
    int singles = view.row_quads[i];
    if constexpr (FORM == Int8Form::quad) {
      const int pairs = view.row_pairs[i];
      singles -= 2 * pairs;
      for (int j = 0; j < pairs; ++j, weight += 8, offset += 2) {
        const QuadSource<V, H, FORM> first(slab, offset), second(slab, offset + 1);
        const auto w0 = V::broadcast(four_weights(weight)), w1 = V::broadcast(four_weights(weight + 4));
#pragma GCC unroll 2
        for (int h = 0; h < H; ++h) {
          typename V::Int x0[4], x1[4];
          first.load(h, x0);
          second.load(h, x1);
#pragma GCC unroll 4
          for (int q = 0; q < 4; ++q) sum[h * 4 + q] = V::dot2(sum[h * 4 + q], x0[q], w0, x1[q], w1);
        }
      }
    }
    for (int j = 0; j < singles; ++j, weight += 4, offset += kOffsets) {
      const QuadSource<V, H, FORM> quad(slab, offset);
      const auto w = V::broadcast(four_weights(weight));
#pragma GCC unroll 2
      for (int h = 0; h < H; ++h) {
        typename V::Int x[4];
        quad.load(h, x);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) sum[h * 4 + q] = V::dot(sum[h * 4 + q], x[q], w);
      }
    }
    if (row_scales) {
      const auto scale = V::broadcast(row_scales[id]), start = V::broadcast(bias ? bias[id] : 0.0f);
#pragma GCC unroll 8
      for (int q = 0; q < 4 * H; ++q) {
        const auto y = V::scaled(sum[q], token_scales + q * kLanes, scale, start);
        if constexpr (FORM == Int8Form::image)
          V::store_natural(row, q, y);
        else
          V::store(row + q * kLanes, y);
      }
    } else {
#pragma GCC unroll 8
      for (int q = 0; q < 4 * H; ++q) V::store(row + q * kLanes, sum[q]);
    }
  }
}

// All column blocks of one row tile: tile[row][width] becomes y before its activation. The slabs of
// blocks are `slab_bytes` apart.
template <class V, int H, Int8Form FORM>
void int8_row_tile(const Int8View& view, int64_t part, const uint8_t* slabs, int64_t slab_bytes, float* tile,
                   const float* bias, const float* token_scales) {
  const int64_t row0 = part * view.tile_rows;
  for (int64_t b = 0; b < view.num_blocks; ++b)
    add_int8_block<V, H, FORM>(view, view.blocks[part * view.num_blocks + b], slabs + b * slab_bytes, tile,
                               b == 0 ? view.row_starts + row0 : nullptr,
                               b == view.num_blocks - 1 ? view.row_scales + row0 : nullptr,
                               bias ? bias + row0 : nullptr, token_scales);
}

template <class V, int H, Int8Form FORM>
void int8_tile(const Int8View& view, const LinearCall& call, TokenTile tokens, int64_t first_tile,
               int64_t last_tile, void* scratch) {
  constexpr int kWidth = H * V::kBytes;
  constexpr int64_t kRowsTurned = 64;  // 64 rows of 64 tokens are 16 KiB, half of L1
  const int64_t bytes = padded_columns(view) * kWidth;
  uint8_t* x = static_cast<uint8_t*>(scratch);
  float* tile = reinterpret_cast<float*>(x + 2 * bytes);
  float* token_scales = tile + view.tile_rows * kWidth;
  quantise_tokens<V::kBytes / 16>(view, call, tokens, x, x + bytes, token_scales);
  float* y = call.y + tokens.first * call.y_stride;
  for (int64_t part = first_tile; part < last_tile; ++part) {
    const int64_t row0 = part * view.tile_rows, num_rows = rows_of_tile(view, part);
    int8_row_tile<V, H, FORM>(view, part, x, view.block_columns * kWidth, tile, call.bias, token_scales);
    for (int64_t r = 0; r < num_rows; r += kRowsTurned) {
      const int64_t rows = num_rows - r < kRowsTurned ? num_rows - r : kRowsTurned;
      activate(tile + r * kWidth, rows * kWidth, call.activation);
      for (int t = 0; t < tokens.num_tokens; t += 8)
        tile_to_tokens8(tile + r * kWidth + t, kWidth, tokens.num_tokens - t < 8 ? tokens.num_tokens - t : 8,
                        rows, y + t * call.y_stride + row0 + r, call.y_stride);
    }
  }
}

// Runs the kernel of V for either form.
template <class V, int H>
void int8_forms(const Int8View& view, const LinearCall& call, TokenTile tokens, int64_t first_tile,
                int64_t last_tile, void* scratch) {
  const auto run = view.form == Int8Form::panel ? int8_tile<V, H, Int8Form::panel> : int8_tile<V, H, Int8Form::quad>;
  run(view, call, tokens, first_tile, last_tile, scratch);
}

// The kernel's own mix on a row that never ends, from a slab in L1.
template <class V, int H, Int8Form FORM>
double ceiling_int8(int64_t repeats) {
  constexpr int kWidth = H * V::kBytes, kColumns = 384, kQuads = 256;
  constexpr int kOffsets = quad_offsets(FORM), kStep = 4 / kOffsets;
  static int8_t weights[kQuads * 4];
  static uint16_t offsets[kQuads * kOffsets];
  static const uint16_t row_ids[] = {0, 0}, row_quads[] = {kQuads}, row_pairs[] = {kQuads / 2};
  unsigned state = 12345;
  for (uint16_t& offset : offsets) {
    state = state * 1664525u + 1013904223u;
    offset = static_cast<uint16_t>((state >> 16) % (kColumns / kStep) * kStep * kInt8OffsetUnit);
  }
  for (int8_t& weight : weights) weight = 3;
  Int8View view = {};
  view.row_ids = row_ids;
  view.row_quads = row_quads;
  view.row_pairs = row_pairs;
  view.weights = weights;
  view.offsets = offsets;
  alignas(64) static uint8_t slab[kColumns * kWidth];
  alignas(64) static float tile[kWidth];
  for (uint8_t& v : slab) v = 5;  // see ceiling_panel
  for (int64_t i = 0; i < repeats; ++i)
    add_int8_block<V, H, FORM>(view, {0, 0, 1}, slab, tile, nullptr, nullptr, nullptr, nullptr);
  return 2.0 * 4 * kWidth * kQuads * static_cast<double>(repeats);
}

}  // namespace gossamer
