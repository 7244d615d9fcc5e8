// SPDX-License-Identifier: Apache-2.0
// int4 with offsets times several tokens: a lane is a row. Twice 16 rows are unpacked and turned once for up to 64
// tokens, so that four columns of 16 rows are a vector; four activations of a token are read into all lanes. Codes are
// unsigned as they are stored, which is what vpdpbusd wants. Nothing is added up across lanes, and scales and offsets
// of 16 rows are a vector.
#pragma once
#include "attention/vec512.hpp"
#include "simd/activation.hpp"
#include "simd/few_int_vec512.hpp"

namespace gossamer {
namespace {

constexpr int64_t kUnits = 2;      // of 16 rows side by side
constexpr int64_t kAtATime = 6;    // tokens side by side: their sums and two vectors of weights are all registers
constexpr int64_t kFours = kIntHalf / 4;

// Tokens of a pass: bytes [token][steps][64], for every half of a step the scale of the token and what offsets are
// multiplied by, its sum.
struct OffsetTokens {
  const uint8_t* bytes;
  const float *scales, *sums;  // [token][2 * steps]
  int64_t halves;
};

// Two units of rows: [unit][half of a step][8 fours of columns][16 rows][4], and [unit][half of a step][16 rows].
struct OffsetRows {
  uint8_t* bytes;
  float *scales, *offsets;
};

// 16 vectors of 16 dwords become their columns.
__attribute__((always_inline)) inline void turn_dwords(__m512i (&v)[16]) {
  __m512 square[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) square[i] = _mm512_castsi512_ps(v[i]);
  avx512::AttentionVec::transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = _mm512_castps_si512(square[i]);
}

// Codes of `count` rows from `row` on; those that are missing are 0.
inline void unpack_unit(const FewIntView& view, int64_t row, int64_t count, uint8_t* out) {
  const uint8_t* from[kIntRowUnit];
  const int64_t row_bytes = view.steps / 2 * kIntStep + view.steps % 2 * kIntStep / 2;
  for (int64_t i = 0; i < kIntRowUnit; ++i) from[i] = view.values + view.unit_starts[row / kIntRowUnit] + i * row_bytes;
  for (int64_t s = 0; s < view.steps; s += 2) {
    const bool is_last = s + 1 == view.steps;
    __m512i first[16], second[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      first[i] = second[i] = _mm512_setzero_si512();
      if (i >= count) continue;
      if (is_last) {
        first[i] = next_weights<true, true>(from[i], nullptr);
      } else {
        __m512i w[2];
        next_two<true, true>(from[i], nullptr, w);
        first[i] = w[0], second[i] = w[1];
      }
    }
    turn_dwords(first);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + (s * 16 + i) * kIntStep, first[i]);
    if (is_last) break;
    turn_dwords(second);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + ((s + 1) * 16 + i) * kIntStep, second[i]);
  }
}

// Scales or offsets of the same rows, for every half of a step.
inline void unpack_groups(const FewIntView& view, const uint16_t* groups, int64_t row, int64_t count, float* out) {
  const int64_t halves = 2 * view.steps;
  // Half a step may be behind the last column.
  if (halves) _mm512_store_si512(out + (halves - 1) * 16, _mm512_setzero_si512());
  for (int64_t g = 0; g < view.scales_of_row; g += 16) {
    const int64_t left = view.scales_of_row - g;
    const __mmask16 inside = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
    __m512i of[16];
    for (int64_t i = 0; i < 16; ++i)
      of[i] = i < count ? _mm512_castps_si512(_mm512_cvtph_ps(
                              _mm256_maskz_loadu_epi16(inside, groups + (row + i) * view.scales_of_row + g)))
                        : _mm512_setzero_si512();
    turn_dwords(of);
    for (int64_t half = 0; half < halves; ++half) {
      const int64_t at = scale_of_column(view, half * kIntHalf) - g;
      if (at >= 0 && at < 16) _mm512_store_si512(out + half * 16, of[at]);
    }
  }
}

// kU units of rows times T tokens.
template <int kU, int T>
void multiply_units(const OffsetRows& w, const OffsetTokens& x, int64_t token, __m512* out) {
  __m512 sum[kU][T];
#pragma GCC unroll 2
  for (int u = 0; u < kU; ++u)
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) sum[u][t] = _mm512_setzero_ps();
  const uint8_t* const bytes = x.bytes + token * x.halves * kIntHalf;
  const int64_t unit_bytes = x.halves * kIntHalf * kIntRowUnit;
  for (int64_t h = 0; h < x.halves; ++h) {
    __m512i part[kU][T];
#pragma GCC unroll 2
    for (int u = 0; u < kU; ++u)
#pragma GCC unroll 6
      for (int t = 0; t < T; ++t) part[u][t] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int64_t f = 0; f < kFours; ++f) {
      __m512i codes[kU];
#pragma GCC unroll 2
      for (int u = 0; u < kU; ++u) codes[u] = _mm512_load_si512(w.bytes + u * unit_bytes + (h * kFours + f) * kIntStep);
#pragma GCC unroll 6
      for (int t = 0; t < T; ++t) {
        int32_t four;
        std::memcpy(&four, bytes + (t * x.halves + h) * kIntHalf + f * 4, sizeof four);
        const __m512i all = _mm512_set1_epi32(four);
#pragma GCC unroll 2
        for (int u = 0; u < kU; ++u) part[u][t] = _mm512_dpbusd_epi32(part[u][t], codes[u], all);
      }
    }
#pragma GCC unroll 2
    for (int u = 0; u < kU; ++u) {
      const __m512 scale = _mm512_load_ps(w.scales + (u * x.halves + h) * 16), offset = _mm512_load_ps(w.offsets + (u * x.halves + h) * 16);
#pragma GCC unroll 6
      for (int t = 0; t < T; ++t) {
        const int64_t at = (token + t) * x.halves + h;
        const __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[at]));
        sum[u][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[u][t]), by, sum[u][t]);
        sum[u][t] = _mm512_fmadd_ps(offset, _mm512_set1_ps(x.sums[at]), sum[u][t]);
      }
    }
  }
#pragma GCC unroll 2
  for (int u = 0; u < kU; ++u)
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) out[u * T + t] = sum[u][t];
}

struct OffsetPass {
  const FewIntView& view;
  const LinearCall& call;
  int64_t first, tokens;  // of the call
  OffsetRows w;
  OffsetTokens x;

  template <int kU, int T>
  void some(int64_t row, int64_t last_row, int64_t token) const {
    __m512 sums[kU * T];
    multiply_units<kU, T>(w, x, token, sums);
    for (int u = 0; u < kU; ++u) {
      const int64_t at = row + u * kIntRowUnit, left = last_row - at;
      const __mmask16 inside = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
      const __m512 bias = call.bias ? _mm512_maskz_loadu_ps(inside, call.bias + at) : _mm512_setzero_ps();
      for (int t = 0; t < T; ++t)
        _mm512_mask_storeu_ps(call.y + (first + token + t) * call.y_stride + at, inside, _mm512_add_ps(sums[u * T + t], bias));
    }
  }

  template <int kU>
  void all(int64_t row, int64_t last_row) const {
    for (int u = 0; u < kU; ++u) {
      const int64_t at = row + u * kIntRowUnit, count = last_row - at < kIntRowUnit ? last_row - at : kIntRowUnit;
      unpack_unit(view, at, count, w.bytes + u * x.halves * kIntHalf * kIntRowUnit);
      unpack_groups(view, view.scales, at, count, w.scales + u * x.halves * 16);
      unpack_groups(view, view.offsets, at, count, w.offsets + u * x.halves * 16);
    }
    int64_t t = 0;
    for (; t + kAtATime <= tokens; t += kAtATime) some<kU, 6>(row, last_row, t);
    switch (tokens - t) {
      case 1: return some<kU, 1>(row, last_row, t);
      case 2: return some<kU, 2>(row, last_row, t);
      case 3: return some<kU, 3>(row, last_row, t);
      case 4: return some<kU, 4>(row, last_row, t);
      case 5: return some<kU, 5>(row, last_row, t);
      default: return;
    }
  }
};

// One token as bytes, with scales and sums of halves of steps.
inline void quantise_halves(const FewIntView& view, const float* x, uint8_t* bytes, float* scales, float* sums) {
  const __m512i ones = _mm512_set1_epi8(1);
  for (int64_t s = 0; s < view.steps; ++s) {
    uint8_t* const to = bytes + s * kIntStep;
    const float scale = quantise_step(x + s * kIntStep, view.columns - s * kIntStep, 0, to);
    const __m512i fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, _mm512_load_si512(to));
    scales[2 * s] = scales[2 * s + 1] = scale;
    sums[2 * s] = scale * static_cast<float>(_mm512_mask_reduce_add_epi32(0x00ff, fours));
    sums[2 * s + 1] = scale * static_cast<float>(_mm512_mask_reduce_add_epi32(0xff00, fours));
  }
}

void run_offsets(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  const int64_t halves = 2 * view.steps;
  uint8_t* const bytes = static_cast<uint8_t*>(scratch);
  uint8_t* const codes = bytes + kIntPass * view.steps * kIntStep;
  float* const scales = reinterpret_cast<float*>(codes + kUnits * kIntRowUnit * view.steps * kIntStep);
  float* const sums = scales + kIntPass * halves;
  float* const row_scales = sums + kIntPass * halves;
  float* const row_offsets = row_scales + kUnits * halves * 16;
  for (int64_t first = 0; first < call.tokens; first += kIntPass) {
    const int64_t tokens = call.tokens - first < kIntPass ? call.tokens - first : kIntPass;
    for (int64_t t = 0; t < tokens; ++t)
      quantise_halves(view, call.x + (first + t) * call.x_stride, bytes + t * view.steps * kIntStep, scales + t * halves,
                      sums + t * halves);
    const OffsetPass pass = {view, call, first, tokens, {codes, row_scales, row_offsets}, {bytes, scales, sums, halves}};
    int64_t row = first_row;
    for (; last_row - row > kIntRowUnit; row += kUnits * kIntRowUnit) pass.all<kUnits>(row, last_row);
    if (row < last_row) pass.all<1>(row, last_row);
  }
  for (int64_t t = 0; t < call.tokens; ++t)
    activate(call.y + t * call.y_stride + first_row, last_row - first_row, call.activation);
}

}  // namespace
}  // namespace gossamer
