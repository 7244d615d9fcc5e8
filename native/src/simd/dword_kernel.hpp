// SPDX-License-Identifier: Apache-2.0
// Products of dwords, four int8 or two bf16, once, over a vector type V that the files of
// the instruction sets supply:
//   V::Int, V::Float, V::Sum, V::kBytes, V::kPerDword (four int8 or two bf16), V::kHasPairs,
//   V::load(const void*), V::loadu, V::broadcast(int32_t), V::broadcast(float), V::store(float*, Float),
//   V::low8(a, b), V::high8, V::low16, V::high16   interleave inside 128-bit lanes,
//   V::dot(sum, x, w)              sum += the products of each dword,
//   V::dot2(sum, x0, w0, x1, w1)   the same for two dwords that row_pairs allows,
//   V::add(Sum, Sum), V::load_sum(const float*)
#pragma once
#include <immintrin.h>

#include "gossamer/dwords.hpp"
#include "simd/activation.hpp"
#include "simd/transpose8.hpp"

namespace gossamer {

// Tokens of a tile of H vectors.
template <class V, int H>
constexpr int kDwordWidth = H * V::kBytes * V::kPerDword / 4;

// The x of one dword for the h-th vector of tokens, as V::kPerDword vectors of dwords.
//
// The panel form of int8 interleaves first and multiplies four by four. Multiplying pairs of
// columns, adding pairs in 16 bits and interleaving those sums needs a third fewer shuffles, but ran
// no faster with 64 tokens (16 registers are not enough for it) and 8 % faster with 32.
template <class V, int H, DwordForm FORM>
struct DwordSource {
  static constexpr int kColumns = dword_offsets(FORM, V::kPerDword);
  static constexpr int kScale = FORM == DwordForm::image ? 1 : H * V::kBytes / kDwordOffsetUnit;
  const char* slab;
  size_t at[kColumns];  // not pointers: addressing scales by 2 for free

  __attribute__((always_inline)) DwordSource(const char* base, const uint16_t* offset) : slab(base) {
#pragma GCC unroll 4
    for (int i = 0; i < kColumns; ++i) at[i] = offset[i];
  }
  __attribute__((always_inline)) typename V::Int vector(int i, int v) const {
    const char* from = slab + at[i] * kScale + v * V::kBytes;
    return FORM == DwordForm::image ? V::loadu(from) : V::load(from);
  }
  __attribute__((always_inline)) void load(int h, typename V::Int x[V::kPerDword]) const {
    if constexpr (FORM == DwordForm::neighbours) {
#pragma GCC unroll 4
      for (int i = 0; i < V::kPerDword; ++i) x[i] = vector(0, h * V::kPerDword + i);
    } else if constexpr (V::kPerDword == 2) {
      const auto a = vector(0, h), b = vector(1, h);
      x[0] = V::low16(a, b);
      x[1] = V::high16(a, b);
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

// Adds one column block to the accumulators of a row tile, tile[row][width] of 32 bits: start(id,
// row, q) gives the q-th vector of a row, store(id, row, q, sum) takes it.
//
// With SETS > 1 dwords go to as many accumulators in turn, where one chain would wait for its
// latency. The order of additions depends on the layout and the width of the tile alone.
template <class V, int H, DwordForm FORM, int SETS, class Start, class Store>
__attribute__((always_inline)) static inline void add_dwords(const DwordView& view, const DwordBlock& block,
                                                             const uint8_t* slab_bytes, float* tile,
                                                             const Start& start, const Store& store) {
  constexpr int kWidth = kDwordWidth<V, H>, kPerDword = V::kPerDword, kSums = H * kPerDword;
  constexpr int kOffsets = DwordSource<V, H, FORM>::kColumns;
  const char* slab = reinterpret_cast<const char*>(slab_bytes);
  const int32_t* weight = view.weights + block.first_dword;
  const uint16_t* offset = view.offsets + block.first_dword * kOffsets;
  for (int64_t i = block.first_row; i < block.first_row + block.num_rows; ++i) {
    const int64_t id = view.row_ids[i];
    float* row = tile + id * kWidth;
    typename V::Sum sum[SETS][kSums];
#pragma GCC unroll 8
    for (int q = 0; q < kSums; ++q) {
      sum[0][q] = start(id, row, q);
#pragma GCC unroll 4
      for (int s = 1; s < SETS; ++s) sum[s][q] = typename V::Sum{};
    }
    // The next row is elsewhere in L2.
    const float* next = tile + static_cast<int64_t>(view.row_ids[i + 1]) * kWidth;
#pragma GCC unroll 8
    for (int line = 0; line < kWidth; line += 16) _mm_prefetch(reinterpret_cast<const char*>(next + line), _MM_HINT_T0);
    int singles = view.row_dwords[i];
    if constexpr (FORM == DwordForm::neighbours && V::kHasPairs) {
      const int pairs = view.row_pairs[i];
      singles -= 2 * pairs;
      for (int j = 0; j < pairs; ++j, weight += 2, offset += 2) {
        const DwordSource<V, H, FORM> first(slab, offset), second(slab, offset + 1);
        const auto w0 = V::broadcast(weight[0]), w1 = V::broadcast(weight[1]);
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h) {
          typename V::Int x0[kPerDword], x1[kPerDword];
          first.load(h, x0);
          second.load(h, x1);
#pragma GCC unroll 4
          for (int q = 0; q < kPerDword; ++q)
            sum[0][h * kPerDword + q] = V::dot2(sum[0][h * kPerDword + q], x0[q], w0, x1[q], w1);
        }
      }
    }
    const auto step = [&](int set) __attribute__((always_inline)) {
      const DwordSource<V, H, FORM> dword(slab, offset);
      const auto w = V::broadcast(*weight);
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) {
        typename V::Int x[kPerDword];
        dword.load(h, x);
#pragma GCC unroll 4
        for (int q = 0; q < kPerDword; ++q) sum[set][h * kPerDword + q] = V::dot(sum[set][h * kPerDword + q], x[q], w);
      }
      weight += 1;
      offset += kOffsets;
    };
    int j = 0;
    for (; j + SETS <= singles; j += SETS)
#pragma GCC unroll 4
      for (int s = 0; s < SETS; ++s) step(s);
#pragma GCC unroll 4
    for (int s = 0; s + 1 < SETS; ++s)
      if (j + s < singles) step(s);
#pragma GCC unroll 8
    for (int q = 0; q < kSums; ++q) {
#pragma GCC unroll 4
      for (int s = 1; s < SETS; ++s) sum[0][q] = V::add(sum[0][q], sum[s][q]);
      store(id, row, q, sum[0][q]);
    }
  }
}

// Activation, and a row tile back to [token][row].
template <int WIDTH>
static inline void finish_dwords(const DwordView& view, const LinearCall& call, TokenTile tokens, int64_t part,
                                 float* tile) {
  constexpr int64_t kRowsTurned = 64;  // 64 rows of 64 tokens are 16 KiB, half of L1
  const int64_t row0 = part * view.tile_rows, num_rows = rows_of_tile(view, part);
  float* y = call.y + tokens.first * call.y_stride;
  for (int64_t r = 0; r < num_rows; r += kRowsTurned) {
    const int64_t rows = num_rows - r < kRowsTurned ? num_rows - r : kRowsTurned;
    activate(tile + r * WIDTH, rows * WIDTH, call.activation);
    for (int t = 0; t < tokens.num_tokens; t += 8)
      tile_to_tokens8(tile + r * WIDTH + t, WIDTH, tokens.num_tokens - t < 8 ? tokens.num_tokens - t : 8, rows,
                      y + t * call.y_stride + row0 + r, call.y_stride);
  }
}

// The kernel's own mix on a row that never ends, from a slab in L1.
template <class V, int H, DwordForm FORM, int SETS = 1>
double ceiling_dwords(int64_t repeats) {
  constexpr int kWidth = kDwordWidth<V, H>, kColumns = 96 * V::kPerDword, kDwords = 256;
  constexpr int kOffsets = DwordSource<V, H, FORM>::kColumns, kStep = V::kPerDword / kOffsets;
  static int32_t weights[kDwords];
  static uint16_t offsets[kDwords * kOffsets];
  static const uint16_t row_ids[] = {0, 0}, row_dwords[] = {kDwords}, row_pairs[] = {kDwords / 2};
  unsigned state = 12345;
  for (uint16_t& offset : offsets) {
    state = state * 1664525u + 1013904223u;
    offset = static_cast<uint16_t>((state >> 16) % (kColumns / kStep) * kStep * kDwordOffsetUnit);
  }
  for (int32_t& weight : weights) weight = 0x03030303;
  DwordView view = {};
  view.row_ids = row_ids;
  view.row_dwords = row_dwords;
  view.row_pairs = row_pairs;
  view.weights = weights;
  view.offsets = offsets;
  alignas(64) static uint8_t slab[kColumns * H * V::kBytes];
  alignas(64) static float tile[kWidth];
  for (uint8_t& v : slab) v = 0x3d;  // written first, see ceiling_panel
  const auto start = [](int64_t, const float* row, int q) __attribute__((always_inline)) {
    return V::load_sum(row + q * (V::kBytes / 4));
  };
  const auto store = [](int64_t, float* row, int q, typename V::Sum sum) __attribute__((always_inline)) {
    V::store(row + q * (V::kBytes / 4), sum);
  };
  for (int64_t i = 0; i < repeats; ++i) add_dwords<V, H, FORM, SETS>(view, {0, 0, 1}, slab, tile, start, store);
  return 2.0 * V::kPerDword * kWidth * kDwords * static_cast<double>(repeats);
}

}  // namespace gossamer
