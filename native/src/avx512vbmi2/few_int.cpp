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

// What every step of a row is multiplied by, for every token.
template <bool kInt4>
inline void row_factors(const FewIntView& view, int64_t row, const QuantisedTokens& x, int64_t tokens, float* factors) {
  for (int64_t s = 0; s < view.steps; s += 16) {
    __m512 scale;
    if (!kInt4) {
      scale = _mm512_set1_ps(view.row_scales[row]);
    } else {
      const uint16_t* scales = view.scales + row * view.scales_of_row;
      const int64_t left = view.steps - s;
      const __mmask16 inside = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
      __m256i halves;
      if (view.span == 1) {
        halves = _mm256_maskz_loadu_epi16(inside, scales + s);
      } else {
        alignas(32) uint16_t some[16] = {};
        for (int64_t i = 0; i < (left < 16 ? left : 16); ++i) some[i] = scales[(s + i) / view.span];
        halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(some));
      }
      scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
      scale = _mm512_mul_ps(scale, _mm512_set1_ps(1.0f / kIntScaleUnit));
    }
    for (int64_t t = 0; t < tokens; ++t)
      _mm512_store_ps(factors + t * x.scale_stride + s,
                      _mm512_mul_ps(scale, _mm512_load_ps(x.scales + t * x.scale_stride + s)));
  }
}

template <bool kInt4, bool kDense, int T>
inline void run_row(const FewIntView& view, const LinearCall& call, int64_t row, int64_t token, const uint8_t*& values,
             const QuantisedTokens& x, const float* factors) {
  const uint64_t* mask = view.masks + (kDense ? 0 : row * view.steps);
  __m512 acc[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
  const __m512i zero = _mm512_setzero_si512(), offset = _mm512_set1_epi8(static_cast<char>(0x80));
  const int64_t x_stride = view.steps * kIntStep;
  if (!kDense) prefetch(mask);
  for (int64_t s = 0; s < view.steps; ++s) {
    const __m512i w = next_weights<kInt4, kDense>(values, mask);
    const __m512i less = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, offset, w));
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const __m512i sums = _mm512_dpbusd_epi32(less, _mm512_load_si512(x.bytes + t * x_stride + s * kIntStep), w);
      acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(factors[t * x.scale_stride + s]), acc[t]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    if (token + t >= call.tokens) break;
    const float sum = _mm512_reduce_add_ps(acc[t]);
    call.y[(token + t) * call.y_stride + row] = call.bias ? sum + call.bias[row] : sum;
  }
}

template <bool kInt4, bool kDense>
void run_rows(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t token,
              int64_t tokens, const QuantisedTokens& x, float* factors) {
  const uint8_t* values = view.values + (first_row < last_row ? view.unit_starts[first_row / kIntRowUnit] : 0);
  const QuantisedTokens later = {x.bytes + 8 * view.steps * kIntStep, x.scales + 8 * x.scale_stride, x.scale_stride};
  for (int64_t row = first_row; row < last_row; ++row) {
    row_factors<kInt4>(view, row, x, tokens, factors);
    const uint8_t* again = values;
    if (tokens == 1) {
      run_row<kInt4, kDense, 1>(view, call, row, token, values, x, factors);
    } else if (tokens == 2) {
      run_row<kInt4, kDense, 2>(view, call, row, token, values, x, factors);
    } else if (tokens <= 4) {
      run_row<kInt4, kDense, 4>(view, call, row, token, values, x, factors);
    } else {
      run_row<kInt4, kDense, 8>(view, call, row, token, values, x, factors);
      if (tokens > 8) run_row<kInt4, kDense, 8>(view, call, row, token + 8, again, later, factors + 8 * x.scale_stride);
    }
  }
}

void run(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  const int64_t stride = int_scale_stride(view);
  QuantisedTokens x = {static_cast<uint8_t*>(scratch), nullptr, stride};
  x.scales = reinterpret_cast<float*>(x.bytes + kIntTokens * view.steps * kIntStep);
  float* factors = x.scales + kIntTokens * stride;
  const auto rows = view.is_int4 ? (view.masks ? run_rows<true, false> : run_rows<true, true>)
                                 : (view.masks ? run_rows<false, false> : run_rows<false, true>);
  for (int64_t first = 0; first < call.tokens; first += kIntTokens) {
    const int64_t left = call.tokens - first, tokens = left < kIntTokens ? left : kIntTokens;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t s = 0; s < view.steps; ++s)
        x.scales[t * stride + s] = quantise_step(call.x + (first + t) * call.x_stride + s * kIntStep,
                                                 view.columns - s * kIntStep, x.bytes + (t * view.steps + s) * kIntStep);
      // Multiplied along with the others: what was there may be denormal, which takes 100 cycles.
      for (int64_t s = view.steps; s < stride; ++s) x.scales[t * stride + s] = 0.0f;
    }
    rows(view, call, first_row, last_row, first, tokens, x, factors);
  }
  for (int64_t t = 0; t < call.tokens; ++t)
    activate(call.y + t * call.y_stride + first_row, last_row - first_row, call.activation);
}

}  // namespace

const FewIntKernel few_int_kernel = run;

}  // namespace gossamer::avx512vbmi2
