// SPDX-License-Identifier: Apache-2.0
// The integer kernels for few tokens. The kept bytes of 64 columns are spread, vpdpbusd multiplies
// them with the bytes of a token. That instruction wants one side unsigned, and what its offset adds must go:
//
// - one token: weights are unsigned as they are stored, with the stored zero where nothing is kept, so what
//   they add too much (8 or 128 times the sum of the activations) is the same for every row: sums start at it.
// - more tokens: 16 rows are unpacked once for up to 64 of them and become signed there. Activations are
//   unsigned, and 128 times the sum of the weights is taken off, which 16 tokens share.
#pragma once
#include "simd/activation.hpp"
#include "simd/few_int_vec512.hpp"

namespace gossamer {
namespace {

// Bytes that are asked for ahead: masks and values are read once, a row after the other.
constexpr int64_t kAhead = 2048;
__attribute__((always_inline)) inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kAhead, _MM_HINT_T0);
}

// One token as bytes, [steps] each.
struct OneToken {
  const uint8_t* bytes;
  const int32_t* starts;  // [16 lanes]: what sums start at
  const float* scales;
};

// One row, lanes not yet added up; `values` moves on. Two sums: one would wait for itself.
template <bool kInt4, bool kDense>
__attribute__((always_inline)) inline __m512 one_row(const FewIntView& view, int64_t row, const uint8_t*& values,
                                                     const OneToken& x, const float* factors) {
  const uint64_t* mask = kDense ? nullptr : view.masks + row * view.steps;
  __m512 acc[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  const uint8_t* at = values;
  const auto multiply = [&](int64_t s, __m512i w, __m512& sum) __attribute__((always_inline)) {
    const __m512i start = _mm512_load_si512(x.starts + s * 16);
    const __m512i products = _mm512_dpbusd_epi32(start, w, _mm512_load_si512(x.bytes + s * kIntStep));
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_set1_ps(factors[s]), sum);
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
template <bool kInt4, bool kDense>
void run_one(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t token, void* scratch) {
  const int64_t stride = int_scale_stride(view);
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  int32_t* starts = reinterpret_cast<int32_t*>(bytes + stride * kIntStep);
  float* scales = reinterpret_cast<float*>(starts + stride * 16);
  float* factors = scales + stride;
  // Multiplied along with the others: what was there may be denormal, which takes 100 cycles.
  __builtin_memset(scales, 0, static_cast<size_t>(stride) * sizeof(float));
  for (int64_t s = 0; s < view.steps; ++s) {
    scales[s] = quantise_step(call.x + token * call.x_stride + s * kIntStep, view.columns - s * kIntStep, 0, bytes + s * kIntStep);
    const __m512i zero = _mm512_setzero_si512();
    const __m512i more = _mm512_dpbusd_epi32(zero, stored_zero<kInt4>(), _mm512_load_si512(bytes + s * kIntStep));
    _mm512_store_si512(starts + s * 16, _mm512_sub_epi32(zero, more));
  }
  const OneToken x = {bytes, starts, scales};
  for (int64_t unit = first_row; unit < last_row; unit += kIntRowUnit) {
    const int64_t count = last_row - unit < kIntRowUnit ? last_row - unit : kIntRowUnit;
    const uint8_t* values = view.values + view.unit_starts[unit / kIntRowUnit];
    __m512 lanes[kIntRowUnit];
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t s = 0; kInt4 && s < view.steps; s += 16)
        _mm512_store_ps(factors + s, _mm512_mul_ps(step_scales(view, unit + i, s), _mm512_load_ps(scales + s)));
      lanes[i] = one_row<kInt4, kDense>(view, unit + i, values, x, kInt4 ? factors : scales);
    }
    for (int64_t i = count; i < kIntRowUnit; ++i) lanes[i] = _mm512_setzero_ps();
    const __mmask16 inside = static_cast<__mmask16>((1u << count) - 1);
    __m512 sums = sums_of(lanes);
    if (!kInt4) sums = _mm512_mul_ps(sums, _mm512_maskz_loadu_ps(inside, view.row_scales + unit));
    if (call.bias) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(inside, call.bias + unit));
    _mm512_mask_storeu_ps(call.y + token * call.y_stride + unit, inside, sums);
  }
}

// Up to 16 tokens: [steps][16 tokens][64] and [steps][16 tokens].
struct TokenGroup {
  const uint8_t* bytes;
  const float* scales;
};

// One unpacked row times T tokens, lanes not yet added up.
template <int T>
__attribute__((always_inline)) inline void group_row(int64_t steps, const uint8_t* weights, const uint8_t* bytes,
                                                     const float* factors, __m512* lanes) {
  __m512 acc[T];  // not `lanes` itself, which would be stored in every step
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
  const __m512i zero = _mm512_setzero_si512(), offset = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int64_t s = 0; s < steps; ++s) {
    const __m512i w = _mm512_load_si512(weights + s * kIntStep);
    const __m512i less = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, offset, w));
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const __m512i sums = _mm512_dpbusd_epi32(less, _mm512_load_si512(bytes + (s * kIntTokens + t) * kIntStep), w);
      acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(factors[s * kIntTokens + t]), acc[t]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) lanes[t] = acc[t];
}

// 16 unpacked rows times up to T tokens: lanes of the tokens are added up together, the tile is turned around.
template <bool kInt4, int T>
void run_group(const FewIntView& view, const LinearCall& call, int64_t unit, int64_t count, const uint8_t* weights,
               const TokenGroup& x, int64_t token, int64_t tokens, float* factors) {
  alignas(64) float tile[kIntRowUnit][kIntTokens];
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t s = 0; kInt4 && s < view.steps; s += 16) {
      alignas(64) float of_step[16];
      _mm512_store_ps(of_step, step_scales(view, unit + i, s));
      for (int64_t j = s; j < s + 16 && j < view.steps; ++j)
        _mm512_store_ps(factors + j * kIntTokens,
                        _mm512_mul_ps(_mm512_set1_ps(of_step[j - s]), _mm512_load_ps(x.scales + j * kIntTokens)));
    }
    __m512 lanes[kIntTokens];
    group_row<T>(view.steps, weights + i * view.steps * kIntStep, x.bytes, kInt4 ? factors : x.scales, lanes);
#pragma GCC unroll 16
    for (int t = T; t < kIntTokens; ++t) lanes[t] = _mm512_setzero_ps();
    const __m512 sums = sums_of(lanes);
    _mm512_store_ps(tile[i], kInt4 ? sums : _mm512_mul_ps(sums, _mm512_set1_ps(view.row_scales[unit + i])));
  }
  for (int64_t t = 0; t < tokens; ++t) {
    float* y = call.y + (token + t) * call.y_stride + unit;
    for (int64_t i = 0; i < count; ++i) y[i] = tile[i][t] + (call.bias ? call.bias[unit + i] : 0.0f);
  }
}

// One row as signed bytes; `values` moves on.
template <bool kInt4, bool kDense>
void unpack_row(int64_t steps, const uint64_t* masks, const uint8_t*& values, uint8_t* out) {
  const auto put = [&](int64_t s, __m512i w) {
    _mm512_store_si512(out + s * kIntStep, _mm512_sub_epi8(w, stored_zero<kInt4>()));
  };
  int64_t s = 0;
  for (; s + 1 < steps; s += 2) {
    __m512i w[2];
    next_two<kInt4, kDense>(values, kDense ? nullptr : masks + s, w);
    put(s, w[0]);
    put(s + 1, w[1]);
  }
  if (s < steps) put(s, next_weights<kInt4, kDense>(values, kDense ? nullptr : masks + s));
}

// Rows of up to kIntPass tokens from `first` on.
template <bool kInt4, bool kDense>
void run_pass(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first,
              int64_t tokens, void* scratch) {
  const int64_t steps = view.steps, stride = int_scale_stride(view);
  const int64_t group_bytes = steps * kIntTokens * kIntStep, group_scales = stride * kIntTokens;
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  uint8_t* weights = bytes + kIntPass * steps * kIntStep;
  float* scales = reinterpret_cast<float*>(weights + kIntRowUnit * steps * kIntStep);
  float* factors = scales + kIntPass * stride;
  __builtin_memset(scales, 0, static_cast<size_t>(kIntPass * stride) * sizeof(float));  // as in run_one
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t group = t / kIntTokens, lane = t % kIntTokens;
    for (int64_t s = 0; s < steps; ++s)
      scales[group * group_scales + s * kIntTokens + lane] =
          quantise_step(call.x + (first + t) * call.x_stride + s * kIntStep, view.columns - s * kIntStep,
                        static_cast<char>(0x80), bytes + group * group_bytes + (s * kIntTokens + lane) * kIntStep);
  }
  for (int64_t unit = first_row; unit < last_row; unit += kIntRowUnit) {
    const int64_t count = last_row - unit < kIntRowUnit ? last_row - unit : kIntRowUnit;
    const uint8_t* values = view.values + view.unit_starts[unit / kIntRowUnit];
    for (int64_t i = 0; i < count; ++i) {
      prefetch(values);
      unpack_row<kInt4, kDense>(steps, kDense ? nullptr : view.masks + (unit + i) * steps, values, weights + i * steps * kIntStep);
    }
    for (int64_t done = 0; done < tokens; done += kIntTokens) {
      const int64_t some = tokens - done < kIntTokens ? tokens - done : kIntTokens, group = done / kIntTokens;
      const TokenGroup x = {bytes + group * group_bytes, scales + group * group_scales};
      const auto run = some > 8 ? run_group<kInt4, 16> : some > 4 ? run_group<kInt4, 8> : run_group<kInt4, 4>;
      run(view, call, unit, count, weights, x, first + done, some, factors);
    }
  }
}

template <bool kInt4, bool kDense>
void run_tokens(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  for (int64_t first = 0; first < call.tokens; first += kIntPass) {
    const int64_t left = call.tokens - first, tokens = left < kIntPass ? left : kIntPass;
    if (tokens == 1) run_one<kInt4, kDense>(view, call, first_row, last_row, first, scratch);
    else run_pass<kInt4, kDense>(view, call, first_row, last_row, first, tokens, scratch);
  }
  for (int64_t t = 0; t < call.tokens; ++t)
    activate(call.y + t * call.y_stride + first_row, last_row - first_row, call.activation);
}

void run_few_int(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  const auto run = view.is_int4 ? (view.masks ? run_tokens<true, false> : run_tokens<true, true>)
                                : (view.masks ? run_tokens<false, false> : run_tokens<false, true>);
  run(view, call, first_row, last_row, scratch);
}

}  // namespace
}  // namespace gossamer
