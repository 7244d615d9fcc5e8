// SPDX-License-Identifier: Apache-2.0
// The integer kernels for few tokens. The kept bytes of 64 columns are spread, vpdpbusd multiplies
// them with the bytes of a token. That instruction wants one side unsigned, and what its offset adds must go:
//
// - one token, here: weights are unsigned as they are stored, with the stored zero where nothing is kept, so what they
//   add too much (8 or 128 times the sum of the activations) is the same for every row: sums start at it.
// - more tokens: few_int_tile512.hpp.
#pragma once
#include "simd/activation.hpp"
#include "simd/few_int_tile512.hpp"
#include "simd/few_int_vec512.hpp"

namespace gossamer {
namespace {

// One token as bytes, [steps] each.
struct OneToken {
  const uint8_t* bytes;
  const int32_t* starts;  // [16 lanes]: what sums start at
};

// One row, lanes not yet added up; `values` moves on. `factors` are those of its parts. Two sums: one would wait for itself.
template <bool kInt4, bool kDense, Offsets kOffsets>
__attribute__((always_inline)) inline __m512 one_row(const FewIntView& view, int64_t row, const uint8_t*& values,
                                                     const OneToken& x, const float* factors) {
  const uint64_t* mask = kDense ? nullptr : view.masks + row * view.steps;
  __m512 acc[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  const uint8_t* at = values;
  const __m512i two_halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const auto multiply = [&](int64_t s, __m512i w, __m512& sum) __attribute__((always_inline)) {
    const __m512i start = kOffsets == Offsets::none ? _mm512_load_si512(x.starts + s * 16) : _mm512_setzero_si512();
    const __m512i products = _mm512_dpbusd_epi32(start, w, _mm512_load_si512(x.bytes + s * kIntStep));
    __m512 factor;
    if (kOffsets == Offsets::of_halves) {
      const __m128d pair = _mm_load_sd(reinterpret_cast<const double*>(factors + 2 * s));
      factor = _mm512_permutexvar_ps(two_halves, _mm512_castps128_ps512(_mm_castpd_ps(pair)));
    } else {
      factor = _mm512_set1_ps(factors[s]);
    }
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), factor, sum);
  };
  int64_t s = 0;
  if (!kDense) prefetch(mask);
  for (; s + 1 < view.steps; s += 2) {
    __m512i w[2];
    prefetch(at);
    if (!kInt4 && kDense) prefetch(at + 64);
    next_two<kInt4, kDense>(at, kDense ? nullptr : mask + s, w);
    multiply(s, w[0], acc[0]);
    multiply(s + 1, w[1], acc[1]);
  }
  if (s < view.steps) multiply(s, next_weights<kInt4, kDense>(at, kDense ? nullptr : mask + s), acc[0]);
  values = at;
  return _mm512_add_ps(acc[0], acc[1]);
}

// Rows of one token: lanes of 16 rows are added up together.
template <bool kInt4, bool kDense, Offsets kOffsets>
void run_one(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t token, void* scratch) {
  constexpr int64_t kHalves = kOffsets == Offsets::of_halves ? 2 : 1;
  constexpr bool kFp16 = kOffsets != Offsets::none;
  const int64_t stride = int_scale_stride(view) * kHalves, parts = view.steps * kHalves;
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  int32_t* starts = reinterpret_cast<int32_t*>(bytes + int_scale_stride(view) * kIntStep);
  float* scales = reinterpret_cast<float*>(starts + int_scale_stride(view) * 16);
  float *sums = scales + stride, *factors = sums + stride;
  const PartGroups groups(view, parts, factors + stride);
  // Multiplied along with the others: what was there may be denormal, which takes 100 cycles.
  __builtin_memset(scales, 0, static_cast<size_t>(2 * stride) * sizeof(float));
  const __m512i zero = _mm512_setzero_si512();
  for (int64_t s = 0; s < view.steps; ++s) {
    uint8_t* const to = bytes + s * kIntStep;
    const float scale = quantise_step(call.x + token * call.x_stride + s * kIntStep, view.columns - s * kIntStep, 0, to);
    const __m512i x = _mm512_load_si512(to);
    if (kOffsets == Offsets::none)
      _mm512_store_si512(starts + s * 16, _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, stored_zero<kInt4>(), x)));
    const __m512i four = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(1), x);
    for (int64_t half = 0; half < kHalves; ++half) {
      scales[s * kHalves + half] = scale;
      const __mmask16 lanes = kHalves == 1 ? 0xffff : half ? 0xff00 : 0x00ff;
      if (kFp16) sums[s * kHalves + half] = scale * static_cast<float>(_mm512_mask_reduce_add_epi32(lanes, four));
    }
  }
  const OneToken x = {bytes, starts};
  for (int64_t unit = first_row; unit < last_row; unit += kIntRowUnit) {
    const int64_t count = last_row - unit < kIntRowUnit ? last_row - unit : kIntRowUnit;
    const uint8_t* values = view.values + view.unit_starts[unit / kIntRowUnit];
    __m512 lanes[kIntRowUnit];
    for (int64_t i = 0; i < count; ++i) {
      __m512 more = _mm512_setzero_ps();
      for (int64_t p = 0; kInt4 && p < parts; p += 16) {
        const __m512 of_row = part_numbers<kFp16>(view, view.scales, unit + i, p, groups);
        _mm512_store_ps(factors + p, _mm512_mul_ps(of_row, _mm512_load_ps(scales + p)));
        if (kFp16)
          more = _mm512_fmadd_ps(part_numbers<kFp16>(view, view.offsets, unit + i, p, groups), _mm512_load_ps(sums + p), more);
      }
      lanes[i] = one_row<kInt4, kDense, kOffsets>(view, unit + i, values, x, kInt4 ? factors : scales);
      if (kFp16) lanes[i] = _mm512_add_ps(lanes[i], more);
    }
    for (int64_t i = count; i < kIntRowUnit; ++i) lanes[i] = _mm512_setzero_ps();
    const __mmask16 inside = static_cast<__mmask16>((1u << count) - 1);
    __m512 total = sums_of(lanes);
    if (!kInt4) total = _mm512_mul_ps(total, _mm512_maskz_loadu_ps(inside, view.row_scales + unit));
    if (call.bias) total = _mm512_add_ps(total, _mm512_maskz_loadu_ps(inside, call.bias + unit));
    _mm512_mask_storeu_ps(call.y + token * call.y_stride + unit, inside, total);
  }
}

template <bool kInt4, bool kDense, Offsets kOffsets>
void run_tokens(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  for (int64_t first = 0; first < call.tokens; first += kIntPass) {
    const int64_t left = call.tokens - first, tokens = left < kIntPass ? left : kIntPass;
    if (tokens == 1) run_one<kInt4, kDense, kOffsets>(view, call, first_row, last_row, first, scratch);
    else run_pass<kInt4, kDense, kOffsets>(view, call, first_row, last_row, first, tokens, scratch);
  }
  for (int64_t t = 0; t < call.tokens; ++t)
    activate(call.y + t * call.y_stride + first_row, last_row - first_row, call.activation);
}

void run_few_int(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  // Two scales a step have to be spread here: for one token the AVX2 loop, which has 32 columns to a vector, is 1.2 times as fast.
  if (view.has_halves && call.tokens == 1) return avx2::few_int_kernel(view, call, first_row, last_row, scratch);
  const auto run = view.offsets   ? (view.has_halves ? run_tokens<true, true, Offsets::of_halves> : run_tokens<true, true, Offsets::of_steps>)
                   : view.is_int4 ? (view.masks ? run_tokens<true, false, Offsets::none> : run_tokens<true, true, Offsets::none>)
                                  : (view.masks ? run_tokens<false, false, Offsets::none> : run_tokens<false, true, Offsets::none>);
  run(view, call, first_row, last_row, scratch);
}

}  // namespace
}  // namespace gossamer
