// SPDX-License-Identifier: Apache-2.0
// Tiles of attention, once over the vector types of vec256.hpp and vec512.hpp.
//
// Two products do all the work. Both broadcast one side, which is read as it lies, and hold a tile of sums in
// registers (6 rows of 64 columns with AVX-512): per step four loads, six broadcasts, 24 FMAs.
#pragma once
#include "attention.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

template <class V>
constexpr int kVectors = static_cast<int>(kTile) / V::kLanes;
template <class V>
constexpr int kWidth = V::kStrip * V::kLanes;  // columns of a strip

// exp(v) for v <= 0; 0 below -87, NaN stays.
template <class V>
typename V::Type exp_below(typename V::Type v) {
  using T = typename V::Type;
  const T c = V::larger(V::all(-87.0f), v);
  const T shifted = V::fma(c, V::all(1.44269504f), V::all(12582912.0f));  // 1.5 * 2^23: rounds to nearest
  const T n = V::sub(shifted, V::all(12582912.0f));
  const T r = V::fma(n, V::all(2.12194440e-4f), V::fma(n, V::all(-0.693359375f), c));
  T p = V::fma(V::all(1.9875691500e-4f), r, V::all(1.3981999507e-3f));
  p = V::fma(p, r, V::all(8.3334519073e-3f));
  p = V::fma(p, r, V::all(4.1665795894e-2f));
  p = V::fma(p, r, V::all(1.6666665459e-1f));
  p = V::fma(p, r, V::all(5.0000001201e-1f));
  p = V::fma(V::mul(p, r), r, V::add(r, V::all(1.0f)));
  return V::only(V::not_below(v, V::all(-87.0f)), V::mul(p, V::two_to(shifted)));
}

// tanh(v), from exp of twice the smaller of v and -v.
template <class V>
typename V::Type tanh_of(typename V::Type v) {
  using T = typename V::Type;
  const T minus = V::sub(V::zero(), v);
  const T e = exp_below<V>(V::mul(V::all(-2.0f), V::larger(minus, v)));  // NaN of v stays
  const T t = V::divide(V::sub(V::all(1.0f), e), V::add(V::all(1.0f), e));
  return V::where(V::not_below(v, V::zero()), t, V::sub(V::zero(), t));
}

// c[kR][strip] = a[kR rows][dim] times b[dim][64]; a is broadcast.
template <class V, int kR>
void product_rows(const float* a, int64_t stride, int64_t dim, const float* b, float* c) {
  using T = typename V::Type;
  T sum[kR][V::kStrip];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V::kStrip; ++v) sum[r][v] = V::zero();
  for (int64_t d = 0; d < dim; ++d, b += kTile) {
    T w[V::kStrip];
#pragma GCC unroll 4
    for (int v = 0; v < V::kStrip; ++v) w[v] = V::load(b + v * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const T term = V::all(a[r * stride + d]);
#pragma GCC unroll 4
      for (int v = 0; v < V::kStrip; ++v) sum[r][v] = V::fma(term, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V::kStrip; ++v) V::store(c + r * kTile + v * V::kLanes, sum[r][v]);
}

// c[kR][strip] = c * factor + sum over rows of a[row][kR] b[row][64]; a is broadcast, factor null = 1.
template <class V, int kR>
void outer_rows(const float* a, int64_t stride, int64_t rows, const float* b, const float* factor, float* c) {
  using T = typename V::Type;
  T sum[kR][V::kStrip];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V::kStrip; ++v) {
      const T old = V::load(c + r * kTile + v * V::kLanes);
      sum[r][v] = factor ? V::mul(old, V::load(factor + v * V::kLanes)) : old;
    }
  for (int64_t row = 0; row < rows; ++row, b += kTile, a += stride) {
    T w[V::kStrip];
#pragma GCC unroll 4
    for (int v = 0; v < V::kStrip; ++v) w[v] = V::load(b + v * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const T term = V::all(a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < V::kStrip; ++v) sum[r][v] = V::fma(term, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V::kStrip; ++v) V::store(c + r * kTile + v * V::kLanes, sum[r][v]);
}

// run(first row, number of rows as a constant) over `rows`: full groups, then what is left.
template <int kR>
struct Height {
  static constexpr int value = kR;
};
template <class V, class Run>
void in_groups(int64_t rows, Run run) {
  static_assert(V::kRows == 6, "groups that are left have 1 to 5 rows");
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6) run(r, Height<6>());
  switch (rows - r) {
    case 1: return run(r, Height<1>());
    case 2: return run(r, Height<2>());
    case 3: return run(r, Height<3>());
    case 4: return run(r, Height<4>());
    case 5: return run(r, Height<5>());
    default: return;
  }
}

// c[rows][64] = a[rows][dim] b[dim][64]
template <class V>
void product(const float* a, int64_t stride, int64_t rows, int64_t dim, const float* b, float* c) {
  for (int64_t x = 0; x < kTile; x += kWidth<V>)
    in_groups<V>(rows, [&](int64_t r, auto height) {
      product_rows<V, decltype(height)::value>(a + r * stride, stride, dim, b + x, c + r * kTile + x);
    });
}

// c[dim][64] = c * factor + a[rows][dim]^T b[rows][64]
template <class V>
void outer(const float* a, int64_t stride, int64_t rows, int64_t dim, const float* b, const float* factor, float* c) {
  for (int64_t x = 0; x < kTile; x += kWidth<V>)
    in_groups<V>(dim, [&](int64_t d, auto height) {
      outer_rows<V, decltype(height)::value>(a + d, stride, rows, b + x, factor ? factor + x : nullptr,
                                             c + d * kTile + x);
    });
}

// The score of row r and vector v from its product; `slope` becomes what the cap multiplies gradients by.
template <class V>
typename V::Type score_of(const TileScores& s, typename V::Type product, int64_t r, int v, typename V::Type* slope) {
  using T = typename V::Type;
  T score = V::mul(product, V::all(s.scale));
  if (s.cap > 0.0f) {
    const T t = tanh_of<V>(V::mul(score, V::all(1.0f / s.cap)));
    score = V::mul(t, V::all(s.cap));
    if (slope) *slope = V::sub(V::all(1.0f), V::mul(t, t));
  }
  if (s.bias) score = V::add(score, V::load(s.bias + v * V::kLanes - r));
  return score;
}

// Scores in place, and the largest of each lane.
template <class V, bool kPlain>
void scores_and_most(const ForwardTile& c, typename V::Type (&most)[kVectors<V>]) {
  using T = typename V::Type;
  const T scale = V::all(c.s.scale);
  for (int64_t k = 0; k < c.s.rows; ++k) {
    float* const row = c.scores + k * kTile;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors<V>; ++v) {
      T score = V::load(row + v * V::kLanes);
      score = kPlain ? V::mul(score, scale) : score_of<V>(c.s, score, k, v, nullptr);
      if (c.s.mask) score = V::where(V::bits(c.s.mask[k], v), score, V::all(-__builtin_inff()));
      V::store(row + v * V::kLanes, score);
      most[v] = V::larger(score, most[v]);
    }
  }
}

template <class V>
void forward_tile(const ForwardTile& c) {
  using T = typename V::Type;
  constexpr int kN = kVectors<V>;
  product<V>(c.k, c.k_stride, c.s.rows, c.dim, c.qt, c.scores);
  T most[kN], factor[kN], total[kN];
  for (int v = 0; v < kN; ++v) most[v] = V::load(c.most + v * V::kLanes);
  if (c.s.cap > 0.0f || c.s.bias)
    scores_and_most<V, false>(c, most);
  else
    scores_and_most<V, true>(c, most);
  alignas(64) float factors[kTile];
  for (int v = 0; v < kN; ++v) {
    factor[v] = exp_below<V>(V::sub(V::load(c.most + v * V::kLanes), most[v]));
    total[v] = V::mul(V::load(c.total + v * V::kLanes), factor[v]);
    V::store(factors + v * V::kLanes, factor[v]);
    V::store(c.most + v * V::kLanes, most[v]);
  }
  for (int64_t k = 0; k < c.s.rows; ++k) {
    float* const row = c.scores + k * kTile;
#pragma GCC unroll 8
    for (int v = 0; v < kN; ++v) {
      T weight = exp_below<V>(V::sub(V::load(row + v * V::kLanes), most[v]));
      total[v] = V::add(total[v], weight);
      if (c.s.drop) weight = V::only(V::kept(c.s.lane_bits + v * V::kLanes, c.s.row_bits[k], c.s.drop), weight);
      V::store(row + v * V::kLanes, weight);
    }
  }
  for (int v = 0; v < kN; ++v) V::store(c.total + v * V::kLanes, total[v]);
  outer<V>(c.v, c.v_stride, c.s.rows, c.value_dim, c.scores, factors, c.ot);
}

// Weights and gradients of scores from both products, in place.
template <class V, bool kPlain>
void weights_and_dscores(const BackwardTile& c) {
  using T = typename V::Type;
  const T scale = V::all(c.s.scale), keep_scale = V::all(c.s.keep_scale);
  for (int64_t i = 0; i < c.s.rows; ++i) {
    float* const weights = c.weights + i * kTile;
    float* const dscores = c.dscores + i * kTile;
    const T lse = V::all(c.lse[i]), delta = V::all(c.delta[i]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors<V>; ++v) {
      const int at = v * V::kLanes;
      T slope = V::all(1.0f), grad = V::load(dscores + at), product = V::load(weights + at);
      const T score = kPlain ? V::mul(product, scale) : score_of<V>(c.s, product, i, v, &slope);
      T weight = exp_below<V>(V::sub(score, lse)), used = weight;
      if (c.s.mask) weight = used = V::only(V::bits(c.s.mask[i], v), weight);
      if (!kPlain && c.s.drop) {
        const typename V::Mask kept = V::kept(c.s.lane_bits + at, c.s.row_bits[i], c.s.drop);
        used = V::only(kept, V::mul(weight, keep_scale));
        grad = V::only(kept, V::mul(grad, keep_scale));
      }
      T dscore = V::mul(weight, V::sub(grad, delta));
      if (c.s.mask) dscore = V::only(V::bits(c.s.mask[i], v), dscore);
      if (!kPlain && c.dbias) {
        float* const to = c.dbias + at - i;
        V::store(to, V::add(V::load(to), dscore));
      }
      V::store(weights + at, used);
      V::store(dscores + at, kPlain ? dscore : V::mul(dscore, slope));
    }
  }
}

template <class V>
void turn(const float* from, int64_t stride, int64_t rows, int64_t dim, float* to) {
  constexpr int kL = V::kLanes;
  const int64_t whole = dim / kL * kL;
  for (int64_t r = 0; r < kTile; r += kL) {
    if (r + kL <= rows) {
      for (int64_t d = 0; d < whole; d += kL) {
        typename V::Type square[kL];
#pragma GCC unroll 16
        for (int i = 0; i < kL; ++i) square[i] = V::load(from + (r + i) * stride + d);
        V::transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kL; ++i) V::store(to + (d + i) * kTile + r, square[i]);
      }
      for (int64_t d = whole; d < dim; ++d)
        for (int i = 0; i < kL; ++i) to[d * kTile + r + i] = from[(r + i) * stride + d];
    } else {
      for (int64_t d = 0; d < dim; ++d)
        for (int i = 0; i < kL; ++i) to[d * kTile + r + i] = r + i < rows ? from[(r + i) * stride + d] : 0.0f;
    }
  }
}

template <class V>
void turn_back(const float* from, int64_t rows, int64_t dim, const float* factor, float scale, float* to,
               int64_t stride) {
  constexpr int kL = V::kLanes;
  for (int64_t r = 0; r < rows; r += kL) {
    int64_t d = 0;
    if (r + kL <= rows)
      for (; d + kL <= dim; d += kL) {
        typename V::Type square[kL];
        const typename V::Type by = factor ? V::mul(V::load(factor + r), V::all(scale)) : V::all(scale);
#pragma GCC unroll 16
        for (int i = 0; i < kL; ++i) square[i] = V::mul(V::load(from + (d + i) * kTile + r), by);
        V::transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kL; ++i) V::store(to + (r + i) * stride + d, square[i]);
      }
    for (; d < dim; ++d)
      for (int64_t i = r; i < r + kL && i < rows; ++i)
        to[i * stride + d] = from[d * kTile + i] * ((factor ? factor[i] : 1.0f) * scale);
  }
}

template <class V>
void backward_tile(const BackwardTile& c) {
  product<V>(c.q, c.q_stride, c.s.rows, c.dim, c.kt, c.weights);
  product<V>(c.grad, c.grad_stride, c.s.rows, c.value_dim, c.vt, c.dscores);
  if (c.s.cap > 0.0f || c.s.bias || c.s.drop)
    weights_and_dscores<V, false>(c);
  else
    weights_and_dscores<V, true>(c);
  outer<V>(c.grad, c.grad_stride, c.s.rows, c.value_dim, c.weights, nullptr, c.dvt);
  outer<V>(c.q, c.q_stride, c.s.rows, c.dim, c.dscores, nullptr, c.dkt);
  turn<V>(c.dscores, kTile, c.s.rows, kTile, c.turned);
  outer<V>(c.k, c.k_stride, c.keys, c.dim, c.turned, nullptr, c.dqt);
}

}  // namespace
}  // namespace gossamer
