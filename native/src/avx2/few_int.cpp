// SPDX-License-Identifier: Apache-2.0
// The integer kernels for few tokens. vpmaddubsw multiplies unsigned with signed bytes and adds two products
// in 16 bits.
//
// - int8: weights give their signs to the activations.
// - int4: weights are unsigned as they are stored, with the stored zero where nothing is kept, so what they add too
//   much (8 times the sum of the activations) is the same for every row: sums start at it. With more than one
//   token they become signed when they are unpacked, and are multiplied as int8 is.
// - offsets: codes are what is multiplied; what offsets add is a product with sums of the activations.
#include "few_int_vec.hpp"
#include "simd/activation.hpp"

namespace gossamer::avx2 {
namespace {

// Rows or tokens whose lanes are added up together.
constexpr int kTogether = 8;

// Bytes that are asked for ahead: masks and values are read once, a row after the other.
constexpr int64_t kAhead = 2048;
__attribute__((always_inline)) inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kAhead, _MM_HINT_T0);
}

// Floats of a row of `sums`, which whole vectors are read from.
inline int64_t sums_stride(const FewIntView& view) { return 2 * int_scale_stride(view); }

// How weights are stored, and offsets for steps or their halves.
enum class Kind { int8, int4, offsets, half_offsets };
constexpr bool is_int4(Kind kind) { return kind != Kind::int8; }
constexpr bool has_offsets(Kind kind) { return kind == Kind::offsets || kind == Kind::half_offsets; }
constexpr int parts_of(Kind kind) { return kind == Kind::half_offsets ? 2 : 1; }  // of a step, each with a scale

// One token: bytes of step s at bytes + s * bytes_stride, its scale at scales[s * scales_stride]; sums of the
// groups that share an offset.
inline void quantise_token(const FewIntView& view, const float* x, uint8_t* bytes, int64_t bytes_stride, float* scales,
                           int64_t scales_stride, float* sums) {
  __builtin_memset(sums, 0, static_cast<size_t>(sums_stride(view)) * sizeof(float));
  for (int64_t s = 0; s < view.steps; ++s) {
    float halves[2];
    scales[s * scales_stride] = quantise_step(x + s * kIntStep, view.columns - s * kIntStep, bytes + s * bytes_stride, halves);
    for (int h = 0; h < 2 && view.offsets; ++h) sums[scale_of_column(view, s * kIntStep + h * kIntHalf)] += halves[h];
  }
}

template <Kind kKind>
inline __m256 eight_scales(const FewIntView& view, int64_t at) {
  return has_offsets(kKind) ? from_fp16s(view.scales + at) : from_bf16s(view.scales + at);
}

// The scale of a part of a step.
template <Kind kKind>
inline int64_t scale_at(const FewIntView& view, int64_t step, int part) {
  return kKind == Kind::half_offsets ? 2 * step + part : step / view.span;
}

__attribute__((always_inline)) inline __m256 add_scaled(__m256i sums, const float* factor, __m256 sum) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_broadcast_ss(factor), sum);
}

// One step of one row: its products come to `sum`, those of a second part to `other`. The factor of that is
// `stride` floats behind the first. `start` is added to the products of int4.
template <Kind kKind, bool kSigned>
__attribute__((always_inline)) inline void add_step(const __m256i* w, const uint8_t* x, const int32_t* start, const float* factors,
                                                    int64_t stride, __m256& sum, __m256& other) {
  if (kKind == Kind::half_offsets) {
    sum = add_scaled(sums_of_two(products<kSigned>(w[0], load_bytes(x))), factors, sum);
    other = add_scaled(sums_of_two(products<kSigned>(w[1], load_bytes(x + kIntHalf))), factors + stride, other);
    return;
  }
  __m256i products = step_products<is_int4(kKind), kSigned>(w, x);
  if (start) products = _mm256_add_epi32(products, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(start)));
  sum = add_scaled(products, factors, sum);
}

// Rows of one token: lanes of eight rows are added up together.
template <Kind kKind, bool kDense>
void run_one(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t token, void* scratch) {
  constexpr bool kInt4 = is_int4(kKind);
  constexpr int kParts = parts_of(kKind), kLanes = 8;
  const int64_t steps = view.steps, stride = int_scale_stride(view);
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  int32_t* starts = reinterpret_cast<int32_t*>(bytes + stride * kIntStep);
  float* x_scales = reinterpret_cast<float*>(starts + stride * kLanes);
  float* sums = x_scales + stride;
  float* factors = sums + sums_stride(view);
  float* x_parts = factors + 2 * stride;  // a scale for every part of a step
  float* of_spans = x_parts + 2 * stride;
  quantise_token(view, call.x + token * call.x_stride, bytes, kIntStep, x_scales, 1, sums);
  __builtin_memset(x_parts, 0, static_cast<size_t>(2 * stride) * sizeof(float));
  for (int64_t i = 0; i < steps * kParts; ++i) x_parts[i] = x_scales[i / kParts];
  for (int64_t s = 0; kKind == Kind::int4 && s < steps; ++s) {
    const __m256i zeros[2] = {stored_zero<true>(), stored_zero<true>()};
    const __m256i less = step_products<true, false>(zeros, bytes + s * kIntStep);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(starts + s * kLanes), _mm256_sub_epi32(_mm256_setzero_si256(), less));
  }
  const auto one_row = [&](int64_t row, const uint8_t*& values) __attribute__((always_inline)) {
    const uint64_t* mask = kDense ? nullptr : view.masks + row * steps;
    __m256 acc[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    const bool is_spread = kParts == 1 && view.span > 1;
    for (int64_t g = 0; kInt4 && g < view.scales_of_row; g += kLanes) {
      const int64_t at = row * view.scales_of_row + g;
      const __m256 scales = eight_scales<kKind>(view, at);
      if (has_offsets(kKind)) acc[3] = _mm256_fmadd_ps(from_fp16s(view.offsets + at), _mm256_loadu_ps(sums + g), acc[3]);
      if (is_spread) _mm256_storeu_ps(of_spans + g, scales);
      else _mm256_storeu_ps(factors + g, _mm256_mul_ps(scales, _mm256_loadu_ps(x_parts + g)));
    }
    for (int64_t s = 0; kInt4 && is_spread && s < steps; ++s) factors[s] = of_spans[s / view.span] * x_scales[s];
    const float* factor = kInt4 ? factors : x_scales;
    const uint8_t* at = values;
    const auto multiply = [&](const __m256i* w, int64_t s, __m256& sum, __m256& other) __attribute__((always_inline)) {
      add_step<kKind, !kInt4>(w, bytes + s * kIntStep, kKind == Kind::int4 ? starts + s * kLanes : nullptr, factor + s * kParts,
                              1, sum, other);
    };
    int64_t s = 0;
    if (!kDense) prefetch(mask);
    for (; s + 1 < steps; s += 2) {
      __m256i w[4];
      prefetch(at);
      if (!kInt4 && kDense) prefetch(at + 64);
      next_two<kInt4, kDense>(at, kDense ? nullptr : mask + s, w);
      multiply(w, s, acc[0], acc[1]);
      multiply(w + 2, s + 1, acc[2], acc[3]);
    }
    if (s < steps) {
      __m256i w[2];
      next_weights<kInt4, kDense>(at, kDense ? nullptr : mask + s, w);
      multiply(w, s, acc[0], acc[1]);
    }
    values = at;
    return _mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3]));
  };
  for (int64_t unit = first_row; unit < last_row; unit += kIntRowUnit) {
    const int64_t end = last_row - unit < kIntRowUnit ? last_row : unit + kIntRowUnit;
    const uint8_t* values = view.values + view.unit_starts[unit / kIntRowUnit];
    for (int64_t row = unit; row < end; row += kTogether) {
      const int64_t count = end - row < kTogether ? end - row : kTogether;
      __m256 lanes[kTogether];
      for (int64_t i = 0; i < count; ++i) lanes[i] = one_row(row + i, values);
      for (int64_t i = count; i < kTogether; ++i) lanes[i] = _mm256_setzero_ps();
      alignas(32) float of_rows[kTogether];
      _mm256_store_ps(of_rows, sums_of(lanes));
      float* y = call.y + token * call.y_stride + row;
      for (int64_t i = 0; i < count; ++i)
        y[i] = (kInt4 ? of_rows[i] : of_rows[i] * view.row_scales[row + i]) + (call.bias ? call.bias[row + i] : 0.0f);
    }
  }
}

// Up to eight tokens: bytes [steps][8 tokens][64], scales [steps][8 tokens], sums [8 tokens][sums_stride].
struct TokenGroup {
  const uint8_t* bytes;
  const float *scales, *sums;
};

// One unpacked row times T tokens, lanes not yet added up; `lanes` hold what sums start at.
template <Kind kKind, int T>
__attribute__((always_inline)) inline void group_row(int64_t steps, const uint8_t* weights, const uint8_t* bytes,
                                                     const float* factors, __m256* lanes) {
  __m256 acc[T];  // not `lanes` itself, which would be stored in every step
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) acc[t] = lanes[t];
  for (int64_t s = 0; s < steps; ++s) {
    const __m256i w[2] = {load_bytes(weights + s * kIntStep), load_bytes(weights + s * kIntStep + kIntHalf)};
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
      add_step<kKind, !has_offsets(kKind)>(w, bytes + (s * kTogether + t) * kIntStep, nullptr,
                                           factors + s * parts_of(kKind) * kTogether + t, kTogether, acc[t], acc[t]);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) lanes[t] = acc[t];
}

// 16 unpacked rows times up to T tokens.
template <Kind kKind, int T>
void run_group(const FewIntView& view, const LinearCall& call, int64_t unit, int64_t count, const uint8_t* weights,
               const TokenGroup& x, int64_t token, int64_t tokens, float* factors) {
  constexpr bool kInt4 = is_int4(kKind);
  constexpr int kParts = parts_of(kKind);
  const int64_t steps = view.steps, stride = int_scale_stride(view);
  float* scales = factors + 2 * stride * kTogether;
  for (int64_t i = 0; i < count; ++i) {
    __m256 lanes[kTogether];
    for (__m256& lane : lanes) lane = _mm256_setzero_ps();
    for (int64_t g = 0; kInt4 && g < view.scales_of_row; g += 8) {
      const int64_t at = (unit + i) * view.scales_of_row + g;
      _mm256_storeu_ps(scales + g, eight_scales<kKind>(view, at));
      if (!has_offsets(kKind)) continue;
      const __m256 offsets = from_fp16s(view.offsets + at);
      for (int t = 0; t < T; ++t) lanes[t] = _mm256_fmadd_ps(offsets, _mm256_loadu_ps(x.sums + t * sums_stride(view) + g), lanes[t]);
    }
    for (int64_t s = 0; kInt4 && s < steps; ++s)
      for (int part = 0; part < kParts; ++part)
        _mm256_storeu_ps(factors + (s * kParts + part) * kTogether,
                         _mm256_mul_ps(_mm256_broadcast_ss(scales + scale_at<kKind>(view, s, part)), _mm256_loadu_ps(x.scales + s * kTogether)));
    group_row<kKind, T>(steps, weights + i * steps * kIntStep, x.bytes, kInt4 ? factors : x.scales, lanes);
    alignas(32) float of_tokens[kTogether];
    _mm256_store_ps(of_tokens, sums_of(lanes));
    float* y = call.y + token * call.y_stride + unit + i;
    for (int64_t t = 0; t < tokens; ++t)
      y[t * call.y_stride] = (kInt4 ? of_tokens[t] : of_tokens[t] * view.row_scales[unit + i]) + (call.bias ? call.bias[unit + i] : 0.0f);
  }
}

// One row as bytes, signed unless it has offsets; `values` moves on.
template <Kind kKind, bool kDense>
void unpack_row(int64_t steps, const uint64_t* masks, const uint8_t*& values, uint8_t* out) {
  constexpr bool kInt4 = is_int4(kKind);
  const auto put = [&](int64_t half, __m256i w) {
    store_bytes(out + half * kIntHalf, kKind == Kind::int4 ? _mm256_sub_epi8(w, stored_zero<true>()) : w);
  };
  int64_t s = 0;
  for (; s + 1 < steps; s += 2) {
    __m256i w[4];
    next_two<kInt4, kDense>(values, kDense ? nullptr : masks + s, w);
    for (int i = 0; i < 4; ++i) put(2 * s + i, w[i]);
  }
  if (s < steps) {
    __m256i w[2];
    next_weights<kInt4, kDense>(values, kDense ? nullptr : masks + s, w);
    for (int i = 0; i < 2; ++i) put(2 * s + i, w[i]);
  }
}

// Rows of up to kIntPass tokens from `first` on.
template <Kind kKind, bool kDense>
void run_pass(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first,
              int64_t tokens, void* scratch) {
  const int64_t steps = view.steps, stride = int_scale_stride(view);
  const int64_t group_bytes = steps * kTogether * kIntStep, group_scales = stride * kTogether;
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  uint8_t* weights = bytes + kIntPass * steps * kIntStep;
  float* scales = reinterpret_cast<float*>(weights + kIntRowUnit * steps * kIntStep);
  float* sums = scales + kIntPass * stride;
  float* factors = sums + kIntPass * sums_stride(view);
  // Multiplied along with the others: what was there may be denormal, which takes 100 cycles, or no number.
  __builtin_memset(bytes, 0, static_cast<size_t>(kIntPass * steps * kIntStep));
  __builtin_memset(scales, 0, static_cast<size_t>(kIntPass * (stride + sums_stride(view))) * sizeof(float));
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t group = t / kTogether, lane = t % kTogether;
    quantise_token(view, call.x + (first + t) * call.x_stride, bytes + group * group_bytes + lane * kIntStep, kTogether * kIntStep,
                   scales + group * group_scales + lane, kTogether, sums + t * sums_stride(view));
  }
  for (int64_t unit = first_row; unit < last_row; unit += kIntRowUnit) {
    const int64_t count = last_row - unit < kIntRowUnit ? last_row - unit : kIntRowUnit;
    const uint8_t* values = view.values + view.unit_starts[unit / kIntRowUnit];
    for (int64_t i = 0; i < count; ++i) {
      prefetch(values);
      unpack_row<kKind, kDense>(steps, kDense ? nullptr : view.masks + (unit + i) * steps, values, weights + i * steps * kIntStep);
    }
    for (int64_t done = 0; done < tokens; done += kTogether) {
      const int64_t some = tokens - done < kTogether ? tokens - done : kTogether, group = done / kTogether;
      const TokenGroup x = {bytes + group * group_bytes, scales + group * group_scales, sums + done * sums_stride(view)};
      const auto run = some > 4 ? run_group<kKind, 8> : run_group<kKind, 4>;
      run(view, call, unit, count, weights, x, first + done, some, factors);
    }
  }
}

template <Kind kKind, bool kDense>
void run_tokens(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  for (int64_t first = 0; first < call.tokens; first += kIntPass) {
    const int64_t left = call.tokens - first, tokens = left < kIntPass ? left : kIntPass;
    if (tokens == 1) run_one<kKind, kDense>(view, call, first_row, last_row, first, scratch);
    else run_pass<kKind, kDense>(view, call, first_row, last_row, first, tokens, scratch);
  }
  for (int64_t t = 0; t < call.tokens; ++t)
    activate(call.y + t * call.y_stride + first_row, last_row - first_row, call.activation);
}

void run(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  const auto run = view.has_halves ? run_tokens<Kind::half_offsets, true>
                   : view.offsets  ? run_tokens<Kind::offsets, true>
                   : view.is_int4  ? (view.masks ? run_tokens<Kind::int4, false> : run_tokens<Kind::int4, true>)
                                   : (view.masks ? run_tokens<Kind::int8, false> : run_tokens<Kind::int8, true>);
  run(view, call, first_row, last_row, scratch);
}

}  // namespace

const FewIntKernel few_int_kernel = run;

}  // namespace gossamer::avx2
