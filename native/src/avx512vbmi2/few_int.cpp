// SPDX-License-Identifier: Apache-2.0
// The integer kernels for few tokens. vpexpandb spreads the kept bytes of 64 columns, vpdpbusd multiplies
// them with the bytes of a token. That instruction wants one side unsigned: activations are stored as
// q + 128, and 128 times the sum of the weights, one more product that all tokens share, is taken off.
#include "gossamer/few_int.hpp"

#include <immintrin.h>

#include <cstring>

#include "simd/activation.hpp"

namespace gossamer::avx512vbmi2 {
namespace {

// The next lines of masks and values: they are read once, a row after the other.
constexpr int64_t kAhead = 2048;
__attribute__((always_inline)) inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kAhead, _MM_HINT_T0);
}

// 16 floats, zeros behind the last of `count`.
inline __m512 load_some(const float* x, int64_t count) {
  if (count >= 16) return _mm512_loadu_ps(x);
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(count > 0 ? (1u << count) - 1 : 0), x);
}

// As in the reference: the same products and the same roundings.
inline float quantise_step(const float* x, int64_t count, uint8_t* bytes) {
  __m512 v[4];
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = load_some(x + 16 * i, count - 16 * i);
    // As integers magnitudes are in order, with infinity and NaN on top.
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(v[i]), magnitude));
  }
  const uint32_t bits = _mm512_reduce_max_epu32(largest);
  float top;
  std::memcpy(&top, &bits, sizeof top);
  const bool is_finite = bits < 0x7f800000u;
  const float inverse = is_finite && top >= 1e-30f ? 127.0f / top : 0.0f;
  const __m512 factor = _mm512_set1_ps(inverse);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i q = inverse != 0.0f ? _mm512_cvtps_epi32(_mm512_mul_ps(v[i], factor)) : _mm512_setzero_si512();
    const __m128i b = _mm_xor_si128(_mm512_cvtepi32_epi8(q), _mm_set1_epi8(static_cast<char>(0x80)));
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes + 16 * i), b);
  }
  return is_finite ? (inverse != 0.0f ? top / 127.0f : 0.0f) : __builtin_nanf("");
}

// 64 nibbles from 32 bytes, each as the upper half of a byte: 16 times the value.
inline __m512i nibbles(const uint8_t* p) {
  const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m512i shifts = _mm512_set1_epi64(0x1814100c0804003c);  // 4 j - 4 for the j-th byte
  const __m512i bytes = _mm512_multishift_epi64_epi8(shifts, _mm512_cvtepu32_epi64(packed));
  return _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(0xf0)));
}

// The weights of the next 64 columns; `values` and `mask` move on.
template <bool kInt4, bool kDense>
__attribute__((always_inline)) inline __m512i next_weights(const uint8_t*& values, const uint64_t*& mask) {
  prefetch(values);
  const __m512i stored = kInt4 ? nibbles(values) : _mm512_loadu_si512(values);
  if (kDense) {
    values += kInt4 ? kIntStep / 2 : kIntStep;
    return stored;
  }
  const uint64_t kept = *mask++;
  const int64_t count = __builtin_popcountll(kept);
  values += kInt4 ? (count + 1) / 2 : count;
  return _mm512_maskz_expand_epi8(kept, stored);
}

// The scales of 16 steps of a row; int4 values are 16 times too large.
template <bool kInt4>
inline __m512 step_scales(const FewIntView& view, int64_t row, int64_t step) {
  if (!kInt4) return _mm512_set1_ps(view.row_scales[row]);
  const uint16_t* scales = view.scales + row * view.scales_of_row;
  const int64_t left = view.steps - step;
  __m256i halves;
  if (view.span == 1) {
    halves = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1), scales + step);
  } else {
    alignas(32) uint16_t some[16] = {};
    for (int64_t i = 0; i < (left < 16 ? left : 16); ++i) some[i] = scales[(step + i) / view.span];
    halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(some));
  }
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  return _mm512_mul_ps(scale, _mm512_set1_ps(1.0f / kIntScaleUnit));
}

// What every step of a row is multiplied by: [steps] for one token, else [steps][16 tokens].
template <bool kInt4, int T>
inline void row_factors(const FewIntView& view, int64_t row, const float* x_scales, float* factors) {
  for (int64_t s = 0; s < view.steps; s += 16) {
    const __m512 scale = step_scales<kInt4>(view, row, s);
    if (T == 1) {
      _mm512_store_ps(factors + s, _mm512_mul_ps(scale, _mm512_load_ps(x_scales + s)));
      continue;
    }
    alignas(64) float of_step[16];
    _mm512_store_ps(of_step, scale);
    for (int64_t i = 0; i < 16 && s + i < view.steps; ++i)
      _mm512_store_ps(factors + (s + i) * kIntTokens, _mm512_mul_ps(_mm512_set1_ps(of_step[i]),
                                                                    _mm512_load_ps(x_scales + (s + i) * kIntTokens)));
  }
}

// The sums of 16 vectors in the lanes of one.
inline __m512 sums_of(const __m512* v) {
  __m512 pairs[8], quads[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)  // lanes of 32 bits: v0 v1 v0 v1
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // v0 v1 v2 v3
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  // Quarters of 128 bits: first of a and b, then of all four.
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// One row times T tokens, lanes not yet added up; `values` moves on.
template <bool kInt4, bool kDense, int T>
__attribute__((always_inline)) inline void run_row(const FewIntView& view, int64_t row, const uint8_t*& values,
                                                   const uint8_t* x, const float* factors, __m512* lanes) {
  const uint64_t* mask = kDense ? nullptr : view.masks + row * view.steps;
  __m512 acc[T];  // not `lanes` itself, which would be stored in every step
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
  const __m512i zero = _mm512_setzero_si512(), offset = _mm512_set1_epi8(static_cast<char>(0x80));
  if (!kDense) prefetch(mask);
  constexpr int kStride = T == 1 ? 1 : kIntTokens;
  const uint8_t* at = values;
  for (int64_t s = 0; s < view.steps; ++s) {
    const __m512i w = next_weights<kInt4, kDense>(at, mask);
    const __m512i less = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, offset, w));
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const __m512i sums = _mm512_dpbusd_epi32(less, _mm512_load_si512(x + (s * kStride + t) * kIntStep), w);
      acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(factors[s * kStride + t]), acc[t]);
    }
  }
  values = at;
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) lanes[t] = acc[t];
}

// One token: lanes of 16 rows are added up together.
template <bool kInt4, bool kDense>
void run_one(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t token,
             const uint8_t* x, const float* x_scales, float* factors) {
  for (int64_t unit = first_row; unit < last_row; unit += kIntRowUnit) {
    const int64_t count = last_row - unit < kIntRowUnit ? last_row - unit : kIntRowUnit;
    const uint8_t* values = view.values + view.unit_starts[unit / kIntRowUnit];
    __m512 lanes[kIntRowUnit];
    for (int64_t i = 0; i < count; ++i) {
      row_factors<kInt4, 1>(view, unit + i, x_scales, factors);
      run_row<kInt4, kDense, 1>(view, unit + i, values, x, factors, lanes + i);
    }
    for (int64_t i = count; i < kIntRowUnit; ++i) lanes[i] = _mm512_setzero_ps();
    const __mmask16 inside = static_cast<__mmask16>((1u << count) - 1);
    __m512 sums = sums_of(lanes);
    if (call.bias) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(inside, call.bias + unit));
    _mm512_mask_storeu_ps(call.y + token * call.y_stride + unit, inside, sums);
  }
}

// Up to T tokens: lanes of all of them are added up together, and 16 rows are turned around.
template <bool kInt4, bool kDense, int T>
void run_some(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t token,
              int64_t tokens, const uint8_t* x, const float* x_scales, float* factors) {
  for (int64_t unit = first_row; unit < last_row; unit += kIntRowUnit) {
    const int64_t count = last_row - unit < kIntRowUnit ? last_row - unit : kIntRowUnit;
    const uint8_t* values = view.values + view.unit_starts[unit / kIntRowUnit];
    alignas(64) float tile[kIntRowUnit][kIntTokens];
    for (int64_t i = 0; i < count; ++i) {
      row_factors<kInt4, T>(view, unit + i, x_scales, factors);
      __m512 acc[kIntTokens];
      run_row<kInt4, kDense, T>(view, unit + i, values, x, factors, acc);
#pragma GCC unroll 16
      for (int t = T; t < kIntTokens; ++t) acc[t] = _mm512_setzero_ps();
      _mm512_store_ps(tile[i], sums_of(acc));
    }
    for (int64_t t = 0; t < tokens; ++t) {
      float* y = call.y + (token + t) * call.y_stride + unit;
      for (int64_t i = 0; i < count; ++i) y[i] = tile[i][t] + (call.bias ? call.bias[unit + i] : 0.0f);
    }
  }
}

template <bool kInt4, bool kDense>
void run_tokens(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  float* scales = reinterpret_cast<float*>(bytes + kIntTokens * view.steps * kIntStep);
  float* factors = scales + kIntTokens * int_scale_stride(view);
  for (int64_t first = 0; first < call.tokens; first += kIntTokens) {
    const int64_t left = call.tokens - first, tokens = left < kIntTokens ? left : kIntTokens;
    // One token stands alone, more of them side by side.
    const int64_t stride = tokens == 1 ? 1 : kIntTokens;
    // Multiplied along with the others: what was there may be denormal, which takes 100 cycles.
    __builtin_memset(scales, 0, static_cast<size_t>(stride * int_scale_stride(view)) * sizeof(float));
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t s = 0; s < view.steps; ++s)
        scales[s * stride + t] = quantise_step(call.x + (first + t) * call.x_stride + s * kIntStep,
                                               view.columns - s * kIntStep, bytes + (s * stride + t) * kIntStep);
    if (tokens == 1) run_one<kInt4, kDense>(view, call, first_row, last_row, first, bytes, scales, factors);
    else if (tokens <= 4) run_some<kInt4, kDense, 4>(view, call, first_row, last_row, first, tokens, bytes, scales, factors);
    else if (tokens <= 8) run_some<kInt4, kDense, 8>(view, call, first_row, last_row, first, tokens, bytes, scales, factors);
    else run_some<kInt4, kDense, 16>(view, call, first_row, last_row, first, tokens, bytes, scales, factors);
  }
  for (int64_t t = 0; t < call.tokens; ++t)
    activate(call.y + t * call.y_stride + first_row, last_row - first_row, call.activation);
}

void run(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  const auto run = view.is_int4 ? (view.masks ? run_tokens<true, false> : run_tokens<true, true>)
                                : (view.masks ? run_tokens<false, false> : run_tokens<false, true>);
  run(view, call, first_row, last_row, scratch);
}

}  // namespace

const FewIntKernel few_int_kernel = run;

}  // namespace gossamer::avx512vbmi2
