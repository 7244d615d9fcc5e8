// SPDX-License-Identifier: Apache-2.0
// Softmax over the edges of a row, and its gradient, once over the vector types of vec256.hpp and vec512.hpp.
//
// Weights of a row lie edge by edge, head by head. Where the heads divide a vector, each lane belongs to one head, and
// the row is read as one array; lanes of a head are folded at its end. Left to the compiler, the loops over eight heads
// took five times as long.
#pragma once
#include "graph.hpp"
#include "simd/activation.hpp"

namespace gossamer {
namespace {  // one copy per including file: each is built for another instruction set

// exp(v) for v <= 0 as exp_poly has it; NaN stays.
template <class V>
typename V::Type exp_below(typename V::Type v) {
  using T = typename V::Type;
  const T c = V::larger(v, V::all(-87.0f));
  const T shifted = V::fma(c, V::all(1.44269504f), V::all(12582912.0f));  // 1.5 * 2^23: rounds to nearest
  const T n = V::add(shifted, V::all(-12582912.0f));
  const T r = V::fma(n, V::all(2.12194440e-4f), V::fma(n, V::all(-0.693359375f), c));
  T p = V::fma(V::all(1.9875691500e-4f), r, V::all(1.3981999507e-3f));
  p = V::fma(p, r, V::all(8.3334519073e-3f));
  p = V::fma(p, r, V::all(4.1665795894e-2f));
  p = V::fma(p, r, V::all(1.6666665459e-1f));
  p = V::fma(p, r, V::all(5.0000001201e-1f));
  p = V::fma(V::mul(p, r), r, V::add(r, V::all(1.0f)));
  return V::mul(p, V::two_to(shifted));
}

// Lanes of each head brought together by `join`, and given back to all of them.
template <class V, int kHeads, class Join>
typename V::Type fold(typename V::Type v, Join join) {
  float lanes[V::kLanes];
  V::store(lanes, v);
  for (int l = kHeads; l < V::kLanes; ++l) lanes[l % kHeads] = join(lanes[l % kHeads], lanes[l]);
  for (int l = kHeads; l < V::kLanes; ++l) lanes[l] = lanes[l % kHeads];
  return V::load(lanes);
}

template <class V, int kHeads>
typename V::Type repeated(const float* heads) {
  float lanes[V::kLanes];
  for (int l = 0; l < V::kLanes; ++l) lanes[l] = heads[l % kHeads];
  return V::load(lanes);
}

// Numbers of sources, side by side as the edges lie.
template <int kHeads>
inline void collect(const float* source, const int32_t* columns, int64_t count, float* to) {
  for (int64_t e = 0; e < count; ++e)
    __builtin_memcpy(to + e * kHeads, source + int64_t{columns[e]} * kHeads, kHeads * sizeof(float));
}

// body(offset, mask) for each vector of `count` floats.
template <class V, class Body>
inline void each_vector(int64_t count, Body body) {
  for (int64_t i = 0; i < count; i += V::kLanes) body(i, V::first(count - i));
}

template <class V, int kHeads>
void softmax_heads(const SoftmaxCall& c, int64_t first, int64_t last) {
  using T = typename V::Type;
  const T lowest = V::all(-__builtin_inff()), slope = V::all(c.slope);
  for (int64_t k = first; k < last; ++k) {
    const int64_t start = c.edges.starts[k], edges = c.edges.starts[k + 1] - start, count = edges * kHeads;
    if (!edges) continue;
    float* const w = c.weights + start * kHeads;
    T most = lowest, total = V::zero();
    if (c.target) {
      collect<kHeads>(c.source, c.edges.columns + start, edges, w);
      const T target = repeated<V, kHeads>(c.target + c.edges.row(k) * kHeads);
      each_vector<V>(count, [&](int64_t i, typename V::Mask mask) {
        const T z = V::add(V::load(w + i, mask), target);
        V::store(w + i, V::where_positive(z, z, V::mul(z, slope)), mask);
      });
    }
    each_vector<V>(count, [&](int64_t i, typename V::Mask mask) {
      most = V::larger(V::load_or(w + i, mask, lowest), most);
    });
    most = fold<V, kHeads>(most, [](float a, float b) { return a > b || a != a ? a : b; });
    each_vector<V>(count, [&](int64_t i, typename V::Mask mask) {
      const T power = exp_below<V>(V::sub(V::load_or(w + i, mask, lowest), most));
      V::store(w + i, power, mask);
      total = V::add(total, V::only(power, mask));
    });
    total = V::divide(V::all(1.0f), fold<V, kHeads>(total, [](float a, float b) { return a + b; }));
    each_vector<V>(count, [&](int64_t i, typename V::Mask mask) {
      V::store(w + i, V::mul(V::load(w + i, mask), total), mask);
    });
  }
}

template <class V, int kHeads>
void softmax_backward_heads(const SoftmaxBackwardCall& c, int64_t first, int64_t last) {
  using T = typename V::Type;
  constexpr int64_t kEdges = 512 / kHeads;  // collected at a time
  float collected[kEdges * kHeads];
  const SoftmaxCall& f = c.forward;
  const T one = V::all(1.0f), slope = V::all(f.slope);
  const auto plus = [](float a, float b) { return a + b; };
  for (int64_t k = first; k < last; ++k) {
    const int64_t start = f.edges.starts[k], edges = f.edges.starts[k + 1] - start, row = f.edges.row(k);
    const float* const w = f.weights + start * kHeads;
    float* const grad = c.grad + start * kHeads;
    T dot = V::zero(), sum = V::zero();
    each_vector<V>(edges * kHeads, [&](int64_t i, typename V::Mask mask) {
      dot = V::fma(V::load(w + i, mask), V::load(grad + i, mask), dot);
    });
    dot = fold<V, kHeads>(dot, plus);
    const T target = f.target ? repeated<V, kHeads>(f.target + row * kHeads) : one;
    for (int64_t from = 0; from < edges; from += kEdges) {
      const int64_t part = edges - from < kEdges ? edges - from : kEdges, at = from * kHeads;
      if (f.target) collect<kHeads>(f.source, f.edges.columns + start + from, part, collected);
      each_vector<V>(part * kHeads, [&](int64_t i, typename V::Mask mask) {
        T g = V::mul(V::load(w + at + i, mask), V::sub(V::load(grad + at + i, mask), dot));
        if (f.target) g = V::mul(g, V::where_positive(V::add(target, V::load(collected + i, mask)), one, slope));
        V::store(grad + at + i, g, mask);
        sum = V::add(sum, V::only(g, mask));
      });
    }
    if (!c.sums) continue;
    float sums[V::kLanes];
    V::store(sums, fold<V, kHeads>(sum, plus));
    for (int h = 0; h < kHeads; ++h) c.sums[row * kHeads + h] = sums[h];
  }
}

// Any other number of heads.
inline void softmax_any(const SoftmaxCall& c, int64_t first, int64_t last) {
  const int64_t heads = c.heads;
  float most[kMostHeads], total[kMostHeads];
  for (int64_t k = first; k < last; ++k) {
    const int64_t start = c.edges.starts[k], count = c.edges.starts[k + 1] - start;
    float* __restrict const w = c.weights + start * heads;
    const int32_t* const columns = c.edges.columns + start;
    for (int64_t h = 0; h < heads; ++h) most[h] = -__builtin_inff(), total[h] = 0.0f;
    if (c.target) {
      const float* __restrict const target = c.target + c.edges.row(k) * heads;
      for (int64_t e = 0; e < count; ++e) {
        const float* __restrict const source = c.source + columns[e] * heads;
        for (int64_t h = 0; h < heads; ++h) {
          const float z = target[h] + source[h];
          w[e * heads + h] = z > 0.0f ? z : z * c.slope;
        }
      }
    }
    for (int64_t e = 0; e < count; ++e)
      for (int64_t h = 0; h < heads; ++h) most[h] = w[e * heads + h] > most[h] ? w[e * heads + h] : most[h];
    for (int64_t e = 0; e < count; ++e)
      for (int64_t h = 0; h < heads; ++h) w[e * heads + h] = exp_poly(w[e * heads + h] - most[h]);
    for (int64_t e = 0; e < count; ++e)
      for (int64_t h = 0; h < heads; ++h) total[h] += w[e * heads + h];
    for (int64_t h = 0; h < heads; ++h) total[h] = 1.0f / total[h];
    for (int64_t e = 0; e < count; ++e)
      for (int64_t h = 0; h < heads; ++h) w[e * heads + h] *= total[h];
  }
}

inline void softmax_backward_any(const SoftmaxBackwardCall& c, int64_t first, int64_t last) {
  const SoftmaxCall& f = c.forward;
  const int64_t heads = f.heads;
  float dot[kMostHeads], sum[kMostHeads];
  for (int64_t k = first; k < last; ++k) {
    const int64_t start = f.edges.starts[k], count = f.edges.starts[k + 1] - start, row = f.edges.row(k);
    const float* __restrict const w = f.weights + start * heads;
    float* __restrict const grad = c.grad + start * heads;
    for (int64_t h = 0; h < heads; ++h) dot[h] = sum[h] = 0.0f;
    for (int64_t e = 0; e < count; ++e)
      for (int64_t h = 0; h < heads; ++h) dot[h] += w[e * heads + h] * grad[e * heads + h];
    for (int64_t e = 0; e < count; ++e)
      for (int64_t h = 0; h < heads; ++h)
        grad[e * heads + h] = w[e * heads + h] * (grad[e * heads + h] - dot[h]);
    if (f.target) {
      const float* __restrict const target = f.target + row * heads;
      for (int64_t e = 0; e < count; ++e) {
        const float* __restrict const source = f.source + f.edges.columns[start + e] * heads;
        for (int64_t h = 0; h < heads; ++h) grad[e * heads + h] *= target[h] + source[h] > 0.0f ? 1.0f : f.slope;
      }
    }
    if (!c.sums) continue;
    for (int64_t e = 0; e < count; ++e)
      for (int64_t h = 0; h < heads; ++h) sum[h] += grad[e * heads + h];
    for (int64_t h = 0; h < heads; ++h) c.sums[row * heads + h] = sum[h];
  }
}

template <class V>
void softmax(const SoftmaxCall& c, int64_t first, int64_t last) {
  switch (c.heads) {
    case 1: return softmax_heads<V, 1>(c, first, last);
    case 2: return softmax_heads<V, 2>(c, first, last);
    case 4: return softmax_heads<V, 4>(c, first, last);
    case 8: return softmax_heads<V, 8>(c, first, last);
    default: return softmax_any(c, first, last);
  }
}

template <class V>
void softmax_backward(const SoftmaxBackwardCall& c, int64_t first, int64_t last) {
  switch (c.forward.heads) {
    case 1: return softmax_backward_heads<V, 1>(c, first, last);
    case 2: return softmax_backward_heads<V, 2>(c, first, last);
    case 4: return softmax_backward_heads<V, 4>(c, first, last);
    case 8: return softmax_backward_heads<V, 8>(c, first, last);
    default: return softmax_backward_any(c, first, last);
  }
}

}  // namespace
}  // namespace gossamer
