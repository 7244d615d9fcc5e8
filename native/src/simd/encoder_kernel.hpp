// SPDX-License-Identifier: Apache-2.0
// The encoder's kernels on panels, once, over the vector types of panel_vec256.hpp and panel_vec512.hpp.
#pragma once
#include "gossamer/encoder.hpp"
#include "simd/activate_tokens.hpp"
#include "simd/panel_kernel.hpp"

namespace gossamer {

// Products. The tile of tokens is a panel already, and the accumulators are the result.
template <class V, int NV, int SETS>
void panel_block(const PanelView& view, int64_t part, int64_t b, const float* slab, float* tile, const float* bias) {
  add_block<V, 1, NV, SETS, kTileTokens / 8, float, NothingAhead, kTileTokens>(
      view, view.blocks[part * view.num_blocks + b], slab, tile, b ? nullptr : bias);
}

template <class V>
using PanelBlockRun = void (*)(const PanelView&, int64_t, int64_t, const float*, float*, const float*);

template <class V>
constexpr int kWholeTileSets = kTileTokens / V::kLanes < 8 ? 2 : 1;

// Short sequences leave most of a tile empty: a quarter or half of it is computed where that is enough.
template <class V>
PanelBlockRun<V> panel_block_for(int64_t tokens) {
  constexpr int kVectors = kTileTokens / V::kLanes;
  constexpr int kChains = kVectors < 8 ? 8 : 4;  // of FMAs, at least, where there are registers for them
  return tokens * 4 <= kTileTokens   ? panel_block<V, kVectors / 4, 4 * kChains / kVectors / 2>
         : tokens * 2 <= kTileTokens ? panel_block<V, kVectors / 2, 2 * kChains / kVectors>
                                     : panel_block<V, kVectors, kWholeTileSets<V>>;
}

// Here the order of additions is that of a whole tile: how many tokens share it depends on the number of threads.
template <class V>
void encoder_block(const PanelView& view, int64_t part, int64_t block, const float* slab, float* out, const float* bias,
                   int64_t tokens) {
  constexpr int kVectors = kTileTokens / V::kLanes, kSets = kWholeTileSets<V>;
  const PanelBlockRun<V> run = tokens * 4 <= kTileTokens   ? panel_block<V, kVectors / 4, kSets>
                               : tokens * 2 <= kTileTokens ? panel_block<V, kVectors / 2, kSets>
                                                           : panel_block<V, kVectors, kSets>;
  const int64_t row0 = part * view.tile_rows;
  run(view, part, block, slab, out + row0 * kTileTokens, bias + row0);
}

template <class V>
void encoder_linear(const PanelView& view, int64_t part, const float* in, float* out, const float* bias,
                    Activation activation, int64_t tokens) {
  const int64_t row0 = part * view.tile_rows, rows = rows_of_tile(view, part);
  float* tile = out + row0 * kTileTokens;
  if (view.num_blocks == 0)
    for (int64_t i = 0; i < rows * kTileTokens; ++i) tile[i] = bias[row0 + i / kTileTokens];
  for (int64_t b = 0; b < view.num_blocks; ++b)
    panel_block_for<V>(tokens)(view, part, b, in + b * view.block_columns * kTileTokens, tile, bias + row0);
  activate_tokens(tile, rows, activation, tokens);
}

// Norms: a lane is a token, so sums go down the features.
template <class V, int kVectors, bool kAdds>
void add_norm_vectors(float* x, const float* delta, const NormView& norm, float* out, int64_t tokens) {
  for (int t = 0; t < tokens; t += kVectors * V::kLanes) {
    typename V::Type mean[kVectors], spread[kVectors];
#pragma GCC unroll 4
    for (int q = 0; q < kVectors; ++q) mean[q] = spread[q] = V::zero();
    const auto at = [=](int64_t k, int q) { return k * kTileTokens + t + q * V::kLanes; };
    for (int64_t k = 0; k < norm.features; ++k)
#pragma GCC unroll 4
      for (int q = 0; q < kVectors; ++q) {
        auto v = V::load(x + at(k, q));
        if constexpr (kAdds) {
          v = V::add(v, V::load(delta + at(k, q)));
          V::store(x + at(k, q), v);
        }
        mean[q] = V::add(mean[q], v);
      }
    const auto inverse = V::all(1.0f / static_cast<float>(norm.features));
#pragma GCC unroll 4
    for (int q = 0; q < kVectors; ++q) mean[q] = mean[q] * inverse;
    for (int64_t k = 0; k < norm.features; ++k)
#pragma GCC unroll 4
      for (int q = 0; q < kVectors; ++q) {
        const auto v = V::load(x + at(k, q)) - mean[q];
        spread[q] = V::fma(v, v, spread[q]);
      }
#pragma GCC unroll 4
    for (int q = 0; q < kVectors; ++q)
      spread[q] = V::all(1.0f) / V::sqrt(V::fma(spread[q], inverse, V::all(norm.epsilon)));
    for (int64_t k = 0; k < norm.features; ++k) {
      const auto gain = V::broadcast(norm.gain + k), shift = V::broadcast(norm.shift + k);
#pragma GCC unroll 4
      for (int q = 0; q < kVectors; ++q)
        V::store(out + at(k, q), V::fma((V::load(x + at(k, q)) - mean[q]) * spread[q], gain, shift));
    }
  }
}

template <class V, bool kAdds>
void add_norm_tokens(float* x, const float* delta, const NormView& norm, float* out, int64_t tokens) {
  // As many chains of additions as hide their latency, unless there are no tokens for them.
  const auto run = tokens > 2 * V::kLanes ? add_norm_vectors<V, 4, kAdds>
                   : tokens > V::kLanes   ? add_norm_vectors<V, 2, kAdds>
                                          : add_norm_vectors<V, 1, kAdds>;
  run(x, delta, norm, out, tokens);
}

template <class V>
void encoder_add_norm(float* x, const float* delta, const NormView& norm, float* out, int64_t tokens) {
  (delta ? add_norm_tokens<V, true> : add_norm_tokens<V, false>)(x, delta, norm, out, tokens);
}

// A row at a time: it stays in L1 between its activation and its product.
static inline void encoder_gate(float* panel, int64_t rows, Activation activation, int64_t tokens) {
  const int64_t half = rows / 2;
  const float* factors = panel + half * kTileTokens;
  for (int64_t r = 0; r < half; ++r, panel += kTileTokens, factors += kTileTokens) {
    activate_tokens(panel, 1, activation, tokens);
    for (int i = 0; i < kTileTokens; ++i) panel[i] *= factors[i];
  }
}

static inline void encoder_rotate(float* panel, int64_t heads, int64_t width, const float* turns) {
  const int64_t half = width / 2 * kTileTokens;
  for (int64_t h = 0; h < heads; ++h, panel += width * kTileTokens) {
    float *__restrict a = panel, *__restrict b = panel + half;
    for (int64_t i = 0; i < half; ++i) {
      const float first = a[i], second = b[i];
      a[i] = first * turns[i] - second * turns[half + i];
      b[i] = second * turns[i] + first * turns[half + i];
    }
  }
}

// exp(v) for v <= 0, as exp_poly.
template <class V>
__attribute__((always_inline)) static inline typename V::Type exp_below(typename V::Type v) {
  const auto c = V::max(V::all(-87.0f), v);  // in this order NaN stays
  const auto shifted = V::fma(c, V::all(1.44269504f), V::all(12582912.0f));
  const auto n = shifted - V::all(12582912.0f);
  const auto r = V::fma(n, V::all(2.12194440e-4f), V::fma(n, V::all(-0.693359375f), c));
  auto p = V::all(1.9875691500e-4f);
  p = V::fma(p, r, V::all(1.3981999507e-3f));
  p = V::fma(p, r, V::all(8.3334519073e-3f));
  p = V::fma(p, r, V::all(4.1665795894e-2f));
  p = V::fma(p, r, V::all(1.6666665459e-1f));
  p = V::fma(p, r, V::all(5.0000001201e-1f));
  p = V::fma(p * r, r, r + V::all(1.0f));
  return p * V::two_to(shifted);
}

// Keys of a sequence tile by tile: visit(tile, first lane, last lane, the first key).
template <class Visit>
__attribute__((always_inline)) static inline void each_run(const AttentionCall& call, const KeyRange& keys,
                                                           const Visit& visit) {
  for (int64_t key = keys.first; key < keys.last;) {
    const int64_t token = call.first_token + key, lane = token % kTileTokens;
    const int64_t count = smaller(kTileTokens - lane, keys.last - key);
    visit(token / kTileTokens, lane, lane + count, key);
    key += count;
  }
}

// `count` queries from a lane of a tile on, in NQ vectors: chances[key][NQ vectors], then what they mix.
template <class V, int NQ>
struct QueryBlock {
  static constexpr int kRows = 4;
  static constexpr int kWidth = NQ * V::kLanes;
  const AttentionCall& call;
  const int64_t tile, lane;
  const int64_t first_query;  // of the sequence
  const int count;
  float* chances;  // of the first key that is seen on
  const KeyRange seen = keys_seen(call, first_query, count);

  // R keys at a time: as many broadcasts as vectors of queries, all of them in registers.
  template <int R>
  __attribute__((always_inline)) void score(const float* keys, int64_t key_number, float* to,
                                            typename V::Type top[NQ]) const {
    const float* queries = call.from.tile(tile) + call.query * kTileTokens + lane;
    typename V::Type sum[R][NQ];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) sum[r][q] = V::zero();
    for (int64_t e = 0; e < call.head_width; ++e) {
      typename V::Type query[NQ];
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) query[q] = V::loadu(queries + e * kTileTokens + q * V::kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const auto key = V::broadcast(keys + e * kTileTokens + r);
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) sum[r][q] = V::fma(key, query[q], sum[r][q]);
      }
    }
    const auto scale = V::all(call.scale);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) {
        auto scaled = sum[r][q] * scale;
        if (call.bias) scaled = V::add(scaled, V::loadu(call.bias + first_query - key_number - r + q * V::kLanes));
        top[q] = V::max(top[q], scaled);
        V::store(to + r * kWidth + q * V::kLanes, scaled);
      }
  }

  // R features of the result at a time.
  template <int R>
  __attribute__((always_inline)) void mix(int64_t feature, const typename V::Type inverse[NQ]) const {
    typename V::Type sum[R][NQ];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) sum[r][q] = V::zero();
    each_run(call, seen, [&](int64_t key_tile, int64_t first, int64_t last, int64_t key) __attribute__((always_inline)) {
      const float* values = call.from.tile(key_tile) + (call.value + feature) * kTileTokens;
      const float* chance = chances + (key - seen.first) * kWidth;
      for (int64_t j = first; j < last; ++j, chance += kWidth) {
        typename V::Type p[NQ];
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) p[q] = V::load(chance + q * V::kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const auto value = V::broadcast(values + r * kTileTokens + j);
#pragma GCC unroll 4
          for (int q = 0; q < NQ; ++q) sum[r][q] = V::fma(value, p[q], sum[r][q]);
        }
      }
    });
    float* to = call.into.tile(tile) + (call.mixed + feature) * kTileTokens + lane;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q)
        if (count > q * V::kLanes)
          V::store_first(to + r * kTileTokens + q * V::kLanes, sum[r][q] * inverse[q], count - q * V::kLanes);
  }

  void run() const {
    typename V::Type top[NQ], sum[NQ];
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q) {
      top[q] = V::all(-__builtin_inff());
      sum[q] = V::zero();
    }
    each_run(call, seen, [&](int64_t key_tile, int64_t first, int64_t last, int64_t key) __attribute__((always_inline)) {
      const float* keys = call.from.tile(key_tile) + call.key * kTileTokens + first;
      float* to = chances + (key - seen.first) * kWidth;
      const int64_t count = last - first;
      int64_t j = 0;
      for (; j + kRows <= count; j += kRows, to += kRows * kWidth) score<kRows>(keys + j, key + j, to, top);
      for (; j < count; ++j, to += kWidth) score<1>(keys + j, key + j, to, top);
    });
    for (int64_t j = 0; j < seen.last - seen.first; ++j)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) {
        float* at = chances + j * kWidth + q * V::kLanes;
        const auto p = exp_below<V>(V::load(at) - top[q]);
        sum[q] = V::add(sum[q], p);
        V::store(at, p);
      }
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q) sum[q] = V::all(1.0f) / sum[q];
    int64_t e = 0;
    for (; e + kRows <= call.head_width; e += kRows) mix<kRows>(e, sum);
    for (; e < call.head_width; ++e) mix<1>(e, sum);
  }
};

// Queries in blocks that do not cross tiles, no wider than what is left asks for.
template <class V, int NQ>
void encoder_attend(const AttentionCall& call, float* scratch) {
  for (int64_t done = 0; done < call.num_tokens;) {
    const int64_t token = call.first_token + done, lane = token % kTileTokens, tile = token / kTileTokens;
    int64_t count = smaller(smaller(kTileTokens - lane, call.num_tokens - done), NQ * V::kLanes);
    if (count <= V::kLanes)
      QueryBlock<V, 1>{call, tile, lane, done, static_cast<int>(count), scratch}.run();
    else if (count <= 2 * V::kLanes)
      QueryBlock<V, 2>{call, tile, lane, done, static_cast<int>(count), scratch}.run();
    else
      QueryBlock<V, NQ>{call, tile, lane, done, static_cast<int>(count), scratch}.run();
    done += count;
  }
}

static inline void encoder_to_panel(const float* x, int64_t stride, int64_t tokens, int64_t features, float* panel) {
  for (int64_t t = 0; t < kTileTokens; t += 8)
    tokens8_to_panel(x + t * stride, stride, tokens - t, features, panel + t, kTileTokens);
}

static inline void encoder_from_panel(const float* panel, int64_t tokens, int64_t features, float* y,
                                      int64_t stride) {
  for (int64_t r = 0; r < features; r += kRowsTurned)
    for (int64_t t = 0; t < tokens; t += 8)
      tile_to_tokens8(panel + r * kTileTokens + t, kTileTokens, smaller(8, tokens - t),
                      smaller(kRowsTurned, features - r), y + t * stride + r, stride);
}

}  // namespace gossamer
