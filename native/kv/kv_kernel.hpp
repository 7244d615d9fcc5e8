// SPDX-License-Identifier: Apache-2.0
// Scores, weights and values of pages, once over the vector types of vec256.hpp and vec512.hpp.
//
// A vector of scores is a page (or half of one). Heads that share keys load them once; some pages side by side keep
// enough sums in flight.
#pragma once
#include "attention/attention_kernel.hpp"
#include "kv.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

template <class V>
struct KvLoops {
  using F = typename V::Type;
  using I = typename V::Ints;
  static constexpr int L = V::kLanes;
  static constexpr int kHalves = static_cast<int>(kPage) / L;  // vectors of a page
  static constexpr int kBeside = V::kBeside;                   // pages side by side

  static I four(I bytes, bool is_high) { return is_high ? V::high_halves(bytes) : V::low_halves(bytes); }

  template <int G, int N>
  static void float_scores(const float* q, int64_t dim, const char* const* pages, float* scores, int64_t stride) {
    F sum[G][N][kHalves];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) sum[g][n][h] = V::zero();
    for (int64_t d = 0; d < dim; ++d)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) {
          const F k = V::load(reinterpret_cast<const float*>(pages[n]) + d * kPage + h * L);
#pragma GCC unroll 4
          for (int g = 0; g < G; ++g) sum[g][n][h] = V::fma(k, V::all(q[g * dim + d]), sum[g][n][h]);
        }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) V::store(scores + g * stride + n * kPage + h * L, sum[g][n][h]);
  }

  template <KvType T, int G, int N>
  static void code_scores(const KvQueries& q, int64_t first, const char* const* pages, float* scores, int64_t stride) {
    I sum[G][N][kHalves];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) sum[g][n][h] = V::no_ints();
    const int8_t* const codes = q.codes + first * q.dim;
    constexpr int kFours = T == KvType::int4 ? 2 : 1;  // of columns in the bytes of one
    for (int64_t d = 0; d < q.dim; d += 4 * kFours)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) {
          const I bytes = V::load_bytes(pages[n] + d / kFours * kPage + h * L * 4);
#pragma GCC unroll 2
          for (int f = 0; f < kFours; ++f) {
            const I k = kFours == 1 ? bytes : four(bytes, f);
#pragma GCC unroll 4
            for (int g = 0; g < G; ++g)
              sum[g][n][h] = V::dot(sum[g][n][h], k, V::all_fours(codes + g * q.dim + d + 4 * f));
          }
        }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) {
          const F scale = V::mul(V::all(q.scales[first + g]), V::load(scales_of(T, pages[n], q.dim) + h * L));
          V::store(scores + g * stride + n * kPage + h * L,
                   V::mul(V::to_float(V::less(sum[g][n][h], q.offsets[first + g])), scale));
        }
  }

  template <int G, int N>
  static void some_scores(KvType type, const KvQueries& q, int64_t first, const char* const* pages, float* scores,
                          int64_t stride) {
    if (type == KvType::fp32)
      float_scores<G, N>(q.floats + first * q.dim, q.dim, pages, scores, stride);
    else if (type == KvType::int8)
      code_scores<KvType::int8, G, N>(q, first, pages, scores, stride);
    else
      code_scores<KvType::int4, G, N>(q, first, pages, scores, stride);
  }

  // Pages of the next step are asked for: they are scattered, or the first lines of the stream behind a scale.
  static void ask_for(const char* page, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(page + at);
  }

  template <int G>
  static void head_scores(KvType type, const KvQueries& q, int64_t first, const char* const* pages, int64_t count,
                          float* scores, int64_t stride) {
    const int64_t bytes = page_bytes(type, q.dim);
    int64_t i = 0;
    for (; i + kBeside <= count; i += kBeside) {
      for (int64_t next = i + kBeside; next < i + 2 * kBeside && next < count; ++next) ask_for(pages[next], bytes);
      some_scores<G, kBeside>(type, q, first, pages + i, scores + i * kPage, stride);
    }
    for (; i < count; ++i) some_scores<G, 1>(type, q, first, pages + i, scores + i * kPage, stride);
  }

  // run(first head, number of them)
  template <class Run>
  static void by_threes(int64_t group, Run run) {
    int64_t first = 0;
    for (; first + 3 <= group; first += 3) run(first, std::integral_constant<int, 3>());
    if (group - first == 2) run(first, std::integral_constant<int, 2>());
    if (group - first == 1) run(first, std::integral_constant<int, 1>());
  }

  static void scores(KvType type, const KvQueries& q, const char* const* pages, int64_t count, float* scores,
                     int64_t stride) {
    by_threes(q.group, [&](int64_t first, auto heads) {
      head_scores<decltype(heads)::value>(type, q, first, pages, count, scores + first * stride, stride);
    });
  }

  static void cap(float* scores, int64_t count, float limit) {
    for (int64_t i = 0; i < count; i += L)
      V::store(scores + i,
               V::mul(V::all(limit), tanh_of<V>(V::mul(V::load(scores + i), V::all(1.0f / limit)))));
  }

  static float weigh(float* scores, int64_t count) {
    F top = V::load(scores);
    for (int64_t i = L; i < count; i += L) top = V::larger(V::load(scores + i), top);
    float lanes[L];
    V::store(lanes, top);
    float most = lanes[0];
    for (int i = 1; i < L; ++i) most = lanes[i] > most ? lanes[i] : most;
    const F all = V::all(most);
    F total = V::zero();
    for (int64_t i = 0; i < count; i += L) {
      const F weight = exp_below<V>(V::sub(V::load(scores + i), all));
      V::store(scores + i, weight);
      total = V::add(total, weight);
    }
    V::store(lanes, total);
    float sum = 0.0f;
    for (int i = 0; i < L; ++i) sum += lanes[i];
    return sum;
  }

  // W vectors of columns of all pages, for G heads.
  template <int G, int W>
  static void float_values(int64_t dim, const char* const* pages, int64_t count, const float* weights, int64_t stride,
                           const float* factors, int64_t column, float* out) {
    F sum[G][W];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v) sum[g][v] = V::zero();
    for (int64_t i = 0; i < count; ++i) {
      const auto* row = reinterpret_cast<const float*>(pages[i]) + column;
      if (i + 1 < count && column == 0) ask_for(pages[i + 1], kPage * dim * 4);
      for (int64_t lane = 0; lane < kPage; ++lane, row += dim) {
        F values[W];
#pragma GCC unroll 4
        for (int v = 0; v < W; ++v) values[v] = V::load(row + v * L);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          const F weight = V::all(weights[g * stride + i * kPage + lane]);
#pragma GCC unroll 4
          for (int v = 0; v < W; ++v) sum[g][v] = V::fma(values[v], weight, sum[g][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v)
        V::store(out + g * dim + column + v * L, V::mul(sum[g][v], V::all(factors[g])));
  }

  // Weights of pages times the scales of their rows, as codes of 0 to 255; what a code stands for.
  static void weight_codes(KvType type, int64_t dim, const char* const* pages, int64_t count, const float* weights, char* codes,
                           float* scales) {
    for (int64_t i = 0; i < count; ++i) {
      F scaled[kHalves];
      const float* const by = scales_of(type, pages[i], dim);
      F poison = V::zero();
      for (int h = 0; h < kHalves; ++h) {
        scaled[h] = V::mul(V::load(weights + i * kPage + h * L), V::load(by + h * L));
        poison = V::fma(scaled[h], V::zero(), poison);
      }
      F top = scaled[0];
      if (kHalves == 2) top = V::larger(scaled[kHalves - 1], top);
      const float most = V::largest(top);
      const F inverse = V::all(most > 0.0f ? 255.0f / most : 0.0f);
      for (int h = 0; h < kHalves; ++h) scaled[h] = V::mul(scaled[h], inverse);
      V::store_codes(scaled, codes + i * kPage);
      scales[i] = (most > 0.0f ? most / 255.0f : 0.0f) + V::total(poison);
    }
  }

  template <KvType T, int G, int W>
  static void code_values(int64_t dim, const char* const* pages, int64_t count, const char* codes, const float* scales,
                          const float* factors, int64_t column, float* out) {
    F sum[G][W];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v) sum[g][v] = V::zero();
    for (int64_t i = 0; i < count; ++i) {
      if (i + 1 < count && column == 0) ask_for(pages[i + 1], page_bytes(T, dim));
      I part[G][W];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
        for (int v = 0; v < W; ++v) part[g][v] = V::no_ints();
#pragma GCC unroll 4
      for (int64_t quad = 0; quad < kPage / 4; ++quad) {
        const char* const row = pages[i] + ((T == KvType::int4 ? quad / 2 : quad) * dim + column) * 4;
        I values[W];
#pragma GCC unroll 4
        for (int v = 0; v < W; ++v) {
          values[v] = V::load_bytes(row + v * L * 4);
          if (T == KvType::int4) values[v] = V::less_bytes(four(values[v], quad % 2), 8);
        }
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          const I weight = V::all_fours(codes + (g * count + i) * kPage + quad * 4);
#pragma GCC unroll 4
          for (int v = 0; v < W; ++v) part[g][v] = V::dot(part[g][v], weight, values[v]);
        }
      }
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        const F scale = V::all(scales[g * count + i]);
#pragma GCC unroll 4
        for (int v = 0; v < W; ++v) sum[g][v] = V::fma(V::to_float(part[g][v]), scale, sum[g][v]);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v)
        V::store(out + g * dim + column + v * L, V::mul(sum[g][v], V::all(factors[g])));
  }

  // run(column, number of vectors)
  template <class Run>
  static void by_columns(int64_t dim, Run run) {
    constexpr int kWide = L == 16 ? 4 : 2;
    int64_t column = 0;
    for (; column + kWide * L <= dim; column += kWide * L) run(column, std::integral_constant<int, kWide>());
    for (; column < dim; column += L) run(column, std::integral_constant<int, 1>());
  }

  static void values(KvType type, int64_t group, int64_t dim, const char* const* pages, int64_t count,
                     const float* weights, int64_t stride, const float* factors, char* bytes, float* out) {
    auto* const scales = reinterpret_cast<float*>(bytes + group * count * kPage);
    if (type != KvType::fp32)
      for (int64_t g = 0; g < group; ++g)
        weight_codes(type, dim, pages, count, weights + g * stride, bytes + g * count * kPage, scales + g * count);
    by_threes(group, [&](int64_t g, auto heads) {
      constexpr int kG = decltype(heads)::value;
      by_columns(dim, [&](int64_t column, auto vectors) {
        constexpr int kW = decltype(vectors)::value;
        if (type == KvType::fp32)
          float_values<kG, kW>(dim, pages, count, weights + g * stride, stride, factors + g, column, out + g * dim);
        else
          (type == KvType::int8 ? code_values<KvType::int8, kG, kW> : code_values<KvType::int4, kG, kW>)(
              dim, pages, count, bytes + g * count * kPage, scales + g * count, factors + g, column, out + g * dim);
      });
    });
  }

  static void key_rows(KvType type, const char* page, int64_t dim, float* rows) {
    for (int h = 0; h < kHalves; ++h)
      for (int64_t d = 0; d < dim; d += L) {
        F square[L];  // columns, then rows
        if (type == KvType::fp32) {
#pragma GCC unroll 16
          for (int i = 0; i < L; ++i) square[i] = V::load(reinterpret_cast<const float*>(page) + (d + i) * kPage + h * L);
        } else {
          const F scale = V::load(scales_of(type, page, dim) + h * L);
          const bool is_int4 = type == KvType::int4;
#pragma GCC unroll 4
          for (int quad = 0; quad < L / 4; ++quad) {
            const int64_t column = d + quad * 4;
            const I bytes = V::load_bytes(page + (is_int4 ? column / 8 * 4 : column) * kPage + h * L * 4);
            const I fours = is_int4 ? four(bytes, quad % 2) : bytes;
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i)
              square[quad * 4 + i] = V::mul(V::to_float(V::less(V::unsigned_byte(fours, i), is_int4 ? 8 : 128)), scale);
          }
        }
        V::transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i) V::store(rows + (h * L + i) * dim + d, square[i]);
      }
  }

  static void value_rows(KvType type, const char* page, int64_t dim, float* rows) {
    if (type == KvType::fp32) {
      for (int64_t i = 0; i < kPage * dim; i += L) V::store(rows + i, V::load(reinterpret_cast<const float*>(page) + i));
      return;
    }
    const float* const scales = scales_of(type, page, dim);
    const bool is_int4 = type == KvType::int4;
    for (int64_t quad = 0; quad < kPage / 4; ++quad)
      for (int64_t d = 0; d < dim; d += L) {
        const I bytes = V::load_bytes(page + ((is_int4 ? quad / 2 : quad) * dim + d) * 4);
        const I fours = is_int4 ? V::less_bytes(four(bytes, quad % 2), 8) : bytes;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
          V::store(rows + (quad * 4 + i) * dim + d,
                   V::mul(V::to_float(V::signed_byte(fours, i)), V::all(scales[quad * 4 + i])));
      }
  }

  static void spread(float* rows, int64_t count, int64_t dim) {
    const int64_t size = dim & -dim;
    const float factor = 1.0f / __builtin_sqrtf(static_cast<float>(size));
    for (float* x = rows; x < rows + count * dim; x += size) {
      for (int64_t half = 1; half < size; half *= 2)
        for (int64_t i = 0; i < size; i += 2 * half)
          for (int64_t j = i; j < i + half; ++j) {
            const float a = x[j], b = x[j + half];
            x[j] = a + b;
            x[j + half] = a - b;
          }
      for (int64_t i = 0; i < size; ++i) x[i] *= factor;
    }
  }

  static constexpr KvKernels kernels() { return {scores, cap, weigh, values, key_rows, value_rows, spread}; }
};

}  // namespace
}  // namespace gossamer
