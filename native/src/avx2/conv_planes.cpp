// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "gossamer/conv_planes.hpp"

namespace gossamer::avx2 {
namespace {

__attribute__((always_inline)) inline __m256i load_bits(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

struct Floats {
  using T = float;
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type all(const uint32_t* bits) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(bits)); }
  static Type load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static void store(T* p, Type v) { _mm256_storeu_ps(p, v); }
  static Type multiply_add(Type w, const void* x, Type sum) { return _mm256_fmadd_ps(w, load(x), sum); }
  static Type larger(Type a, Type b) { return _mm256_max_ps(a, b); }  // b if one is NaN
  static Type masked(Type v, const T* mask) { return _mm256_and_ps(v, load(mask)); }
  // Every other one of two vectors.
  static Type halved(Type a, Type b) {
    const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(pairs, 0xd8));
  }
  struct Limits {
    explicit Limits(const PlaneConv<T>&) {}
  };
  static Type added(const PlaneRule&, const T* other, Type sum) { return _mm256_add_ps(sum, load(other)); }
  static Type ended(const PlaneRule&, const Limits&, Type sum) { return sum; }
};

struct Fixed {
  using T = int16_t;
  using Type = __m256i;
  static constexpr int kLanes = 16;
  static Type all(const uint32_t* bits) { return _mm256_set1_epi32(static_cast<int>(*bits)); }
  static Type load(const void* p) { return load_bits(p); }
  static void store(T* p, Type v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static Type multiply_add(Type w, const void* x, Type sum) {
    return _mm256_adds_epi16(sum, _mm256_mulhrs_epi16(w, load(x)));
  }
  static Type larger(Type a, Type b) { return _mm256_max_epi16(a, b); }
  static Type masked(Type v, const T* mask) { return _mm256_and_si256(v, load(mask)); }
  static Type halved(Type a, Type b) {
    const Type first = _mm256_set1_epi32(0xffff);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_and_si256(a, first), _mm256_and_si256(b, first)), 0xd8);
  }
  struct Limits {
    Type low, high;
    explicit Limits(const PlaneConv<T>& conv) : low(_mm256_set1_epi16(conv.low)), high(_mm256_set1_epi16(conv.high)) {}
  };
  static Type added(const PlaneRule& rule, const T* other, Type sum) {
    return multiply_add(all(&rule.added), other, sum);
  }
  static __m256i scaled(__m128i half, __m256 ratio) {
    const __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(half)), ratio);
    const __m256 limit = _mm256_set1_ps(65536.0f);  // beyond 16 bits, far from the end of 32
    return _mm256_cvtps_epi32(_mm256_min_ps(v, limit));
  }
  static Type ended(const PlaneRule& rule, const Limits& limits, Type sum) {
    const __m256 ratio = _mm256_set1_ps(rule.ratio);
    const Type both = _mm256_packs_epi32(scaled(_mm256_castsi256_si128(sum), ratio),
                                         scaled(_mm256_extracti128_si256(sum, 1), ratio));
    const Type v = _mm256_permute4x64_epi64(both, 0xd8);
    return _mm256_max_epi16(_mm256_min_epi16(v, limits.high), limits.low);
  }
};

template <class V, int NV>
void conv_vectors(const PlaneConv<typename V::T>& conv, int64_t first, int64_t first_row, int64_t last_row) {
  using T = typename V::T;
  const typename V::Limits limits(conv);
  const char* in = reinterpret_cast<const char*>(conv.in + first);
  const T* mask = conv.mask + first;
  const typename V::Type zero = {};
  for (int64_t r = first_row; r < last_row; ++r) {
    const PlaneRule& rule = conv.rules[r];
    T* out = conv.out + r * conv.plane + first;
    typename V::Type sum[NV];
#pragma GCC unroll 12
    for (int q = 0; q < NV; ++q) sum[q] = conv.is_first ? V::all(&rule.start) : V::load(out + q * V::kLanes);
    const PlaneWeight* const end = conv.weights + conv.starts[r + 1];
    for (const PlaneWeight* kept = conv.weights + conv.starts[r]; kept != end; ++kept) {
      const char* x = in + kept->offset;
      const typename V::Type w = V::all(&kept->value);
#pragma GCC unroll 12
      for (int q = 0; q < NV; ++q) sum[q] = V::multiply_add(w, x + q * kPlaneVectorBytes, sum[q]);
    }
    if (conv.is_last) {
      if (conv.added && r >= conv.added_first && r < conv.added_last) {
        const T* added = conv.added + (r - conv.added_first) * conv.plane + first;
#pragma GCC unroll 12
        for (int q = 0; q < NV; ++q) sum[q] = V::added(rule, added + q * V::kLanes, sum[q]);
      }
      if (conv.relu)
#pragma GCC unroll 12
        for (int q = 0; q < NV; ++q) sum[q] = V::larger(zero, sum[q]);
#pragma GCC unroll 12
      for (int q = 0; q < NV; ++q) sum[q] = V::masked(V::ended(rule, limits, sum[q]), mask + q * V::kLanes);
    }
#pragma GCC unroll 12
    for (int q = 0; q < NV; ++q) V::store(out + q * V::kLanes, sum[q]);
  }
}

template <class V>
void conv_tile(const PlaneConv<typename V::T>& conv, int64_t first, int vectors, int64_t first_row, int64_t last_row) {
  using Run = void (*)(const PlaneConv<typename V::T>&, int64_t, int64_t, int64_t);
  static constexpr Run runs[kPlaneVectors] = {
      conv_vectors<V, 1>, conv_vectors<V, 2>, conv_vectors<V, 3>, conv_vectors<V, 4>,  conv_vectors<V, 5>,  conv_vectors<V, 6>,
      conv_vectors<V, 7>, conv_vectors<V, 8>, conv_vectors<V, 9>, conv_vectors<V, 10>, conv_vectors<V, 11>, conv_vectors<V, 12>};
  runs[vectors - 1](conv, first, first_row, last_row);
}

template <class V>
void largest_of(const typename V::T* in, const int64_t* offsets, int64_t num_offsets, const typename V::T* mask,
                int64_t vectors, typename V::T* out) {
  using T = typename V::T;
  for (int64_t first = 0; first < vectors * V::kLanes; first += V::kLanes) {
    alignas(32) T top[V::kLanes];
    V::store(top, V::load(in + first + offsets[0]));
    for (int64_t p = 1; p < num_offsets; ++p) {
      const T* other = in + first + offsets[p];
      for (int i = 0; i < V::kLanes; ++i) top[i] = top[i] > other[i] || top[i] != top[i] ? top[i] : other[i];
    }
    V::store(out + first, V::masked(V::load(top), mask + first));
  }
}

template <class V>
void take_phase(const typename V::T* from, int64_t from_step, int64_t rows, int64_t width, int64_t to_step,
                typename V::T* to) {
  for (int64_t r = 0; r < rows; ++r, from += from_step, to += to_step) {
    for (int64_t i = 0; i < width; i += V::kLanes)
      V::store(to + i, V::halved(V::load(from + 2 * i), V::load(from + 2 * i + V::kLanes)));
    for (int64_t i = width; i < to_step; ++i) to[i] = 0;
  }
}

void read_floats(const float* x, int64_t num, float, float, float, float* out) {
  __builtin_memcpy(out, x, static_cast<size_t>(num) * sizeof(float));
}

void read_fixed(const float* x, int64_t num, float inverse, int16_t low, int16_t high, int16_t* out) {
  const float least = low, most = high;
  for (int64_t i = 0; i < num; ++i) {
    float v = x[i] * inverse;
    v = v < most ? v : most;  // NaN: the highest
    v = v > least ? v : least;
    // Nearest, ties to even: numbers this large have no bits behind the point.
    const float shifted = v + 12582912.0f;
    int32_t bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    out[i] = static_cast<int16_t>(bits - 0x4b400000);
  }
}

template <class V>
void clear(typename V::T* first, int64_t plane, int64_t planes, int64_t num) {
  const typename V::Type zero = {};
  for (int64_t p = 0; p < planes; ++p, first += plane) {
    int64_t i = 0;
    for (; i + V::kLanes <= num; i += V::kLanes) V::store(first + i, zero);
    for (; i < num; ++i) first[i] = 0;
  }
}

}  // namespace

const PlaneKernels<float> float_planes = {conv_tile<Floats>, largest_of<Floats>, take_phase<Floats>, read_floats,
                                          clear<Floats>};
const PlaneKernels<int16_t> fixed_planes = {conv_tile<Fixed>, largest_of<Fixed>, take_phase<Fixed>, read_fixed,
                                            clear<Fixed>};

}  // namespace gossamer::avx2
