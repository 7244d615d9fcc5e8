// SPDX-License-Identifier: Apache-2.0
// The integer weights of few_int.hpp times two tokens and more. Rows are lanes: 16 of them are unpacked once for all
// tokens of a pass, four columns of a row in a dword, and a dword of a token is spread over them. So sums need no
// step across lanes, and results lie as they are stored.
//
// Weights stay unsigned as they are stored; what their zero adds, that many times the sum of the activations, is the
// same for all rows, and sums start at it. Offsets are multiplied with those sums instead.
//
// A part is what shares a scale: 64 columns, with has_halves 32. One scale for a whole token would spare a third of
// the time, and lose what makes activations with a few large columns exact.
#pragma once
#include "simd/few_int_vec512.hpp"
#include "simd/turn_dwords.hpp"

namespace gossamer {
namespace {

constexpr int kMostTileTokens = 6;  // times two units of rows: as many sums as there are registers, twice
constexpr int kUnitBytes = kIntRowUnit * kIntStep;  // of a step

enum class Offsets { none, of_steps, of_halves };

// A tile of T tokens: bytes [parts][quads of a part][T][4], numbers [parts][T].
struct IntTile {
  const int8_t* bytes;
  const float* scales;
  const int32_t* starts;
  const float* sums;  // of the activations, scaled
};

__attribute__((always_inline)) inline __m512i spread_dword(const void* p) {
  int32_t dword;
  __builtin_memcpy(&dword, p, sizeof dword);
  return _mm512_set1_epi32(dword);
}

// A step of a unit, [row][64] to [quad][row][4].
inline void turn_unit(const uint8_t* from, int64_t stride, uint8_t* to) {
  __m512i turned[16];
  turn_dwords(from, stride, turned);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, turned[i]);
}

// One row as it is stored; `values` moves on.
template <bool kInt4, bool kDense>
void unpack_row(int64_t steps, const uint64_t* masks, const uint8_t*& values, uint8_t* out) {
  int64_t s = 0;
  for (; s + 1 < steps; s += 2) {
    __m512i w[2];
    next_two<kInt4, kDense>(values, kDense ? nullptr : masks + s, w);
    _mm512_store_si512(out + s * kIntStep, w[0]);
    _mm512_store_si512(out + (s + 1) * kIntStep, w[1]);
  }
  if (s < steps) _mm512_store_si512(out + s * kIntStep, next_weights<kInt4, kDense>(values, kDense ? nullptr : masks + s));
}

// T tokens times G units of rows, [parts][16 rows] of scales and offsets behind one another for each unit.
template <int G, int T, bool kInt4, Offsets kOffsets>
__attribute__((always_inline)) inline void add_parts(const uint8_t* weights, int64_t unit_bytes, const float* scales, const float* offsets,
                                                     int64_t parts, const IntTile& x, __m512 (&total)[T][G]) {
  constexpr int kQuads = kOffsets == Offsets::of_halves ? 8 : 16;
  const int8_t* bytes = x.bytes;
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) total[t][g] = _mm512_setzero_ps();
  for (int64_t p = 0; p < parts; ++p) {
    __m512i sum[T][G];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) sum[t][g] = _mm512_set1_epi32(x.starts[p * T + t]);
#pragma GCC unroll 2
    for (int k = 0; k < kQuads; ++k, weights += 64, bytes += 4 * T) {
      __m512i w[G];
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) w[g] = _mm512_load_si512(weights + g * unit_bytes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512i four = spread_dword(bytes + 4 * t);
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) add_products(sum[t][g], w[g], four);
      }
    }
    __m512 scale[G], offset[G];
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) {
      scale[g] = kInt4 ? _mm512_load_ps(scales + (g * parts + p) * kIntRowUnit) : _mm512_setzero_ps();
      offset[g] = kOffsets != Offsets::none ? _mm512_load_ps(offsets + (g * parts + p) * kIntRowUnit) : _mm512_setzero_ps();
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const __m512 of_token = _mm512_set1_ps(x.scales[p * T + t]);
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) {
        const __m512 both = kInt4 ? _mm512_mul_ps(of_token, scale[g]) : of_token;
        total[t][g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t][g]), both, total[t][g]);
        if (kOffsets != Offsets::none)
          total[t][g] = _mm512_fmadd_ps(offset[g], _mm512_set1_ps(x.sums[p * T + t]), total[t][g]);
      }
    }
  }
}

// Two units, the second of which may be missing, and their results.
template <int G, int T, bool kInt4, Offsets kOffsets>
void tile_rows(const FewIntView& view, const LinearCall& call, int64_t row, int64_t last_row, int64_t token, const uint8_t* weights,
               int64_t unit_bytes, const float* scales, const float* offsets, int64_t parts, const IntTile& x) {
  __m512 total[T][G];
  add_parts<G, T, kInt4, kOffsets>(weights, unit_bytes, scales, offsets, parts, x, total);
#pragma GCC unroll 2
  for (int g = 0; g < G; ++g) {
    const int64_t first = row + g * kIntRowUnit, count = last_row - first;
    const auto inside = static_cast<__mmask16>(count >= kIntRowUnit ? 0xffff : (1u << count) - 1);
    const __m512 scale = kInt4 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(inside, view.row_scales + first);
    const __m512 bias = call.bias ? _mm512_maskz_loadu_ps(inside, call.bias + first) : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const __m512 scaled = kInt4 ? total[t][g] : _mm512_mul_ps(total[t][g], scale);
      _mm512_mask_storeu_ps(call.y + (token + t) * call.y_stride + first, inside, _mm512_add_ps(scaled, bias));
    }
  }
}

// What a pass keeps in its scratch.
struct IntPass {
  int64_t steps, parts, tokens, tiles;
  int8_t* bytes;           // of the tiles
  uint8_t *rows, *units;   // a unit as rows; two of them turned
  float *scales, *sums;    // of the tiles
  int32_t* starts;
  float *row_scales, *row_offsets;  // [2 units][parts][16 rows]

  int64_t first_of(int64_t tile) const { return tokens * tile / tiles; }
  IntTile tile(int64_t index) const {
    const int64_t at = first_of(index) * parts;
    return {bytes + first_of(index) * steps * kIntStep, scales + at, starts + at, sums + at};
  }
};

// One token of a tile, which has `width` of them.
template <bool kInt4, Offsets kOffsets>
void take_token(const float* x, int64_t columns, const IntPass& pass, int64_t first, int64_t lane, int64_t width) {
  constexpr int64_t kHalves = kOffsets == Offsets::of_halves ? 2 : 1;
  constexpr int kZero = kOffsets != Offsets::none ? 0 : kInt4 ? 8 : 128;
  int8_t* to = pass.bytes + first * pass.steps * kIntStep + lane * 4;
  for (int64_t s = 0; s < pass.steps; ++s) {
    alignas(64) uint8_t bytes[kIntStep];
    const float scale = quantise_step(x + s * kIntStep, columns - s * kIntStep, 0, bytes);
    for (int64_t quad = 0; quad < kIntStep / 4; ++quad, to += 4 * width) __builtin_memcpy(to, bytes + 4 * quad, 4);
    const __m512i four = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(bytes));
    const int low = _mm512_mask_reduce_add_epi32(0x00ff, four), high = _mm512_mask_reduce_add_epi32(0xff00, four);
    for (int64_t half = 0; half < kHalves; ++half) {
      const int sum = kHalves == 1 ? low + high : half ? high : low;
      const int64_t at = first * pass.parts + (s * kHalves + half) * width + lane;
      pass.scales[at] = scale;
      pass.starts[at] = -kZero * sum;
      pass.sums[at] = scale * static_cast<float>(sum);
    }
  }
}

// Scales and offsets of a unit, [parts][16 rows].
template <Offsets kOffsets>
void take_row_numbers(const FewIntView& view, int64_t unit, int64_t count, const PartGroups& groups, float* scales, float* offsets) {
  const int64_t parts = groups.parts;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t p = 0; p < parts; p += 16) {
      alignas(64) float some[2][16];
      _mm512_store_ps(some[0], part_numbers<kOffsets != Offsets::none>(view, view.scales, unit + i, p, groups));
      if (kOffsets != Offsets::none) _mm512_store_ps(some[1], part_numbers<true>(view, view.offsets, unit + i, p, groups));
      for (int64_t j = p; j < parts && j < p + 16; ++j) {
        scales[j * kIntRowUnit + i] = some[0][j - p];
        if (kOffsets != Offsets::none) offsets[j * kIntRowUnit + i] = some[1][j - p];
      }
    }
}

// Rows of up to kIntPass tokens from `first` on.
template <bool kInt4, bool kDense, Offsets kOffsets>
void run_pass(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first,
              int64_t tokens, void* scratch) {
  IntPass pass;
  pass.steps = view.steps;
  pass.parts = view.steps * (kOffsets == Offsets::of_halves ? 2 : 1);
  pass.tokens = tokens;
  pass.tiles = (tokens + kMostTileTokens - 1) / kMostTileTokens;
  pass.rows = static_cast<uint8_t*>(scratch);
  pass.units = pass.rows + pass.steps * kUnitBytes;
  pass.row_scales = reinterpret_cast<float*>(pass.units + 2 * pass.steps * kUnitBytes);
  pass.row_offsets = pass.row_scales + 2 * pass.parts * kIntRowUnit;
  pass.bytes = reinterpret_cast<int8_t*>(pass.row_offsets + 2 * pass.parts * kIntRowUnit);
  pass.scales = reinterpret_cast<float*>(pass.bytes + tokens * pass.steps * kIntStep);
  pass.sums = pass.scales + tokens * pass.parts;
  pass.starts = reinterpret_cast<int32_t*>(pass.sums + tokens * pass.parts);
  const PartGroups groups(view, pass.parts, pass.starts + tokens * pass.parts);
  for (int64_t i = 0; i < pass.tiles; ++i) {
    const int64_t from = pass.first_of(i), width = pass.first_of(i + 1) - from;
    for (int64_t t = 0; t < width; ++t)
      take_token<kInt4, kOffsets>(call.x + (first + from + t) * call.x_stride, view.columns, pass, from, t, width);
  }
  using Tile = void (*)(const FewIntView&, const LinearCall&, int64_t, int64_t, int64_t, const uint8_t*, int64_t, const float*,
                        const float*, int64_t, const IntTile&);
  static constexpr Tile all[2][kMostTileTokens] = {
      {tile_rows<1, 1, kInt4, kOffsets>, tile_rows<1, 2, kInt4, kOffsets>, tile_rows<1, 3, kInt4, kOffsets>,
       tile_rows<1, 4, kInt4, kOffsets>, tile_rows<1, 5, kInt4, kOffsets>, tile_rows<1, 6, kInt4, kOffsets>},
      {tile_rows<2, 1, kInt4, kOffsets>, tile_rows<2, 2, kInt4, kOffsets>, tile_rows<2, 3, kInt4, kOffsets>,
       tile_rows<2, 4, kInt4, kOffsets>, tile_rows<2, 5, kInt4, kOffsets>, tile_rows<2, 6, kInt4, kOffsets>}};
  const int64_t unit_bytes = pass.steps * kUnitBytes;
  for (int64_t row = first_row; row < last_row; row += 2 * kIntRowUnit) {
    const int64_t units = last_row - row > kIntRowUnit ? 2 : 1;
    for (int64_t g = 0; g < units; ++g) {
      const int64_t unit = row + g * kIntRowUnit, left = last_row - unit, count = left < kIntRowUnit ? left : kIntRowUnit;
      const uint8_t* values = view.values + view.unit_starts[unit / kIntRowUnit];
      for (int64_t i = 0; i < count; ++i) {
        prefetch(values);
        unpack_row<kInt4, kDense>(pass.steps, kDense ? nullptr : view.masks + (unit + i) * pass.steps, values, pass.rows + i * pass.steps * kIntStep);
      }
      for (int64_t s = 0; s < pass.steps; ++s)
        turn_unit(pass.rows + s * kIntStep, pass.steps * kIntStep, pass.units + g * unit_bytes + s * kUnitBytes);
      if (kInt4)
        take_row_numbers<kOffsets>(view, unit, count, groups, pass.row_scales + g * pass.parts * kIntRowUnit,
                                   pass.row_offsets + g * pass.parts * kIntRowUnit);
    }
    for (int64_t i = 0; i < pass.tiles; ++i)
      all[units - 1][pass.first_of(i + 1) - pass.first_of(i) - 1](view, call, row, last_row, first + pass.first_of(i), pass.units,
                                                                  unit_bytes, pass.row_scales, pass.row_offsets, pass.parts, pass.tile(i));
  }
}

}  // namespace
}  // namespace gossamer
