// SPDX-License-Identifier: Apache-2.0
// Tiles in the order of their list, rows of tiles over threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention.hpp"
#include "gossamer/bf16.hpp"
#include "gossamer/big_alloc.hpp"
#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"
#include "tile_masks.hpp"

namespace gossamer {

DropBits::DropBits(uint64_t seed, int64_t head) {
  // splitmix64
  uint64_t x = seed + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(head) + 1);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  row_key = static_cast<uint32_t>(x);
  column_key = static_cast<uint32_t>(x >> 32);
}

const AttentionKernels& attention_kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::attention_kernels, avx2::attention_kernels, avx512::attention_kernels);
#else
  (void)isa;
  return reference::attention_kernels;
#endif
}

namespace {

int64_t tiles_of(int64_t tokens) { return (tokens + kTile - 1) / kTile; }
int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }

// Memory of a thread, cut into aligned pieces; null if there was none.
class Pieces {
 public:
  explicit Pieces(int64_t floats)
      : at_(static_cast<float*>(thread_scratch(static_cast<size_t>(floats) * sizeof(float)))) {}
  explicit operator bool() const { return at_; }
  float* take(int64_t floats) {
    float* const piece = at_;
    at_ += padded(floats);
    return piece;
  }

 private:
  float* at_;
};

// Some tokens of one head as floats: where they lie, or widened into `own`.
struct FloatRows {
  const float* data;
  int64_t stride;
};

FloatRows float_rows(const HeadRows& t, bool is_bf16, int64_t batch, int64_t head, int64_t token, int64_t rows,
                     int64_t dim, float* own) {
  const int64_t at = batch * t.batch + head * t.head + token * t.token;
  if (!is_bf16) return {static_cast<const float*>(t.data) + at, t.token};
  const auto* const from = static_cast<const uint16_t*>(t.data) + at;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t d = 0; d < dim; ++d) own[r * dim + d] = from_bf16(from[r * t.token + d]);
  return {own, dim};
}

// to[rows][dim] of one head from a turned tile.
void write_rows(const AttentionKernels& kernels, const HeadRows& t, bool is_bf16, int64_t batch, int64_t head,
                int64_t token, int64_t rows, int64_t dim, const float* turned, const float* factor, float scale,
                float* own) {
  const int64_t at = batch * t.batch + head * t.head + token * t.token;
  if (!is_bf16) {
    kernels.turn_back(turned, rows, dim, factor, scale, static_cast<float*>(t.data) + at, t.token);
    return;
  }
  kernels.turn_back(turned, rows, dim, factor, scale, own, dim);
  auto* const to = static_cast<uint16_t*>(t.data) + at;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t d = 0; d < dim; ++d) to[r * t.token + d] = to_bf16(own[r * dim + d]);
}

// What the tiles of one head share: bias around a tile, random bits of a tile.
struct HeadSettings {
  static constexpr int64_t kWindow = 4 * kTile;  // distances -63..63, and what whole vectors read beside them
  const AttentionCall& c;
  const float* bias;
  DropBits drop;
  alignas(64) uint32_t row_bits[kTile], lane_bits[kTile];
  alignas(64) float window[kWindow];

  HeadSettings(const AttentionCall& call, int64_t batch, int64_t head)
      : c(call),
        bias(call.bias ? call.bias + head * (call.queries + call.keys - 1) : nullptr),
        drop(call.seed, batch * call.heads + head) {}

  // Distances query - key of a tile: valid ones.
  template <class Visit>
  void each_distance(int64_t query, int64_t key, Visit visit) const {
    const int64_t queries = std::min(kTile, c.queries - query), keys = std::min(kTile, c.keys - key);
    for (int64_t d = 1 - keys; d < queries; ++d) visit(d, query - key + d + c.keys - 1);
  }

  // `by_key`: rows are keys, lanes queries.
  TileScores scores(int64_t query, int64_t key, bool by_key, const uint64_t* mask) {
    const int64_t rows = std::min(kTile, by_key ? c.keys - key : c.queries - query);
    TileScores s = {rows, c.scale, c.cap, mask, nullptr, c.drop, c.keep_scale, row_bits, lane_bits};
    if (bias) {
      std::fill_n(window, kWindow, 0.0f);
      float* const middle = window + 2 * kTile;
      each_distance(query, key, [&](int64_t d, int64_t at) { middle[by_key ? d : -d] = bias[at]; });
      s.bias = middle;
    }
    if (c.drop)
      for (int64_t i = 0; i < kTile; ++i) {
        (by_key ? lane_bits : row_bits)[i] = drop.query(query + i);
        (by_key ? row_bits : lane_bits)[i] = drop.key(key + i);
      }
    return s;
  }
};

bool forward_row(const AttentionCall& c, const AttentionKernels& kernels, int64_t batch, int64_t head, int64_t row) {
  const int64_t query = row * kTile, queries = std::min(kTile, c.queries - query), kv_head = head / (c.heads / c.kv_heads);
  const int64_t wide = c.is_bf16 ? kTile * std::max(c.dim, c.value_dim) : 0;
  Pieces pieces(kTile * (c.dim + c.value_dim + kTile + 4) + 2 * wide + 128);
  if (!pieces) return false;
  float* const qt = pieces.take(c.dim * kTile);
  float* const ot = pieces.take(c.value_dim * kTile);
  float* const scores = pieces.take(kTile * kTile);
  float *const most = pieces.take(kTile), *const total = pieces.take(kTile), *const factor = pieces.take(kTile);
  float *const own_k = pieces.take(wide), *const own_v = pieces.take(wide);
  const FloatRows q = float_rows(c.q, c.is_bf16, batch, head, query, queries, c.dim, own_k);
  kernels.turn(q.data, q.stride, queries, c.dim, qt);
  std::fill_n(ot, c.value_dim * kTile, 0.0f);
  std::fill_n(most, kTile, kLowestScore);
  std::fill_n(total, kTile, 0.0f);
  HeadSettings settings(c, batch, head);
  const int64_t* const starts = c.by_query.starts + c.head_list[head] * tiles_of(c.queries) + row;
  for (int64_t t = starts[0]; t < starts[1]; ++t) {
    const int64_t key = c.by_query.columns[t] * kTile, keys = std::min(kTile, c.keys - key);
    const TileMask mask(c, batch, head, query, key, c.by_query.masks[t], true, false);
    if (mask.is_empty()) continue;
    const FloatRows k = float_rows(c.k, c.is_bf16, batch, kv_head, key, keys, c.dim, own_k);
    const FloatRows v = float_rows(c.v, c.is_bf16, batch, kv_head, key, keys, c.value_dim, own_v);
    kernels.forward({settings.scores(query, key, true, mask.rows()), qt, k.data, v.data, k.stride, v.stride, c.dim,
                     c.value_dim, scores, most, total, ot});
  }
  float* const lse = c.lse + (batch * c.heads + head) * c.queries + query;
  for (int64_t i = 0; i < kTile; ++i) {
    factor[i] = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
    if (i < queries) lse[i] = total[i] == 0.0f ? -std::numeric_limits<float>::infinity() : most[i] + std::log(total[i]);
  }
  write_rows(kernels, c.out, c.is_bf16, batch, head, query, queries, c.value_dim, ot, factor,
             c.drop ? c.keep_scale : 1.0f, own_k);
  return true;
}

// Few heads are cut into parts of their keys, as many as their number asks for and whatever threads there are: sums are
// then the same for any number of threads.
constexpr int64_t kEnoughTasks = 8, kMostParts = 4;

int64_t key_parts(const AttentionBackwardCall& b) {
  const AttentionCall& c = b.forward;
  const int64_t heads = std::max<int64_t>(c.batch * c.kv_heads, 1);
  // The gradient of a bias is one sum over all keys.
  return b.dbias ? 1 : std::max<int64_t>(std::min({(kEnoughTasks + heads - 1) / heads, kMostParts, tiles_of(c.keys)}), 1);
}

// Everything of the gradients of some keys and values of one head, tile by tile in the order of keys; its heads of
// queries one after the other. Gradients wait turned: whole tiles are added to without a step across lanes. Those of
// queries are what these keys give, for `sums` if there are further parts.
class BackwardHead {
 public:
  BackwardHead(const AttentionBackwardCall& call, const AttentionKernels& kernels, int64_t batch, int64_t kv_head,
               int64_t first_tile, int64_t last_tile, float* sums)
      : b_(call),
        c_(call.forward),
        kernels_(kernels),
        batch_(batch),
        kv_head_(kv_head),
        query_tiles_(tiles_of(c_.queries)),
        key_tiles_(tiles_of(c_.keys)),
        first_tile_(first_tile),
        last_tile_(last_tile),
        sums_(sums),
        wide_(c_.is_bf16 ? kTile * std::max(c_.dim, c_.value_dim) : 0),
        pieces_((sums ? 0 : query_tiles_ * kTile * c_.dim) + (last_tile_ - first_tile_) * kTile * (c_.dim + c_.value_dim) +
                2 * query_tiles_ * kTile + kTile * (c_.dim + c_.value_dim) + 3 * kTile * kTile + 4 * wide_ + 512) {}

  bool run() {
    if (!pieces_) return false;
    if (!sums_) dqt_ = pieces_.take(query_tiles_ * kTile * c_.dim);
    const int64_t keys = (last_tile_ - first_tile_) * kTile;
    dkt_ = pieces_.take(keys * c_.dim);
    dvt_ = pieces_.take(keys * c_.value_dim);
    lse_ = pieces_.take(query_tiles_ * kTile);
    delta_ = pieces_.take(query_tiles_ * kTile);
    kt_ = pieces_.take(kTile * c_.dim);
    vt_ = pieces_.take(kTile * c_.value_dim);
    for (float*& square : squares_) square = pieces_.take(kTile * kTile);
    for (float*& own : own_) own = pieces_.take(wide_);
    std::fill_n(dkt_, keys * c_.dim, 0.0f);
    std::fill_n(dvt_, keys * c_.value_dim, 0.0f);
    const int64_t group = c_.heads / c_.kv_heads;
    for (int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head) run_head(head);
    for (int64_t j = first_tile_; j < last_tile_; ++j) {
      const int64_t at = (j - first_tile_) * kTile;
      write(b_.dk, kv_head_, j * kTile, c_.keys, c_.dim, dkt_ + at * c_.dim, c_.scale);
      write(b_.dv, kv_head_, j * kTile, c_.keys, c_.value_dim, dvt_ + at * c_.value_dim, 1.0f);
    }
    return true;
  }

 private:
  void write(const HeadRows& to, int64_t head, int64_t token, int64_t tokens, int64_t dim, const float* turned,
             float scale) {
    write_rows(kernels_, to, c_.is_bf16, batch_, head, token, std::min(kTile, tokens - token), dim,
               turned, nullptr, scale, own_[0]);
  }

  // What is subtracted from the gradients of a row's weights: sum of grad * out, less the gradient of lse.
  void prepare_rows(int64_t head) {
    const int64_t first = (batch_ * c_.heads + head) * c_.queries;
    for (int64_t i = 0; i < c_.queries; ++i) {
      const FloatRows out = float_rows(c_.out, c_.is_bf16, batch_, head, i, 1, c_.value_dim, own_[0]);
      const FloatRows grad = float_rows(b_.grad, c_.is_bf16, batch_, head, i, 1, c_.value_dim, own_[1]);
      float lanes[16] = {};
      for (int64_t d = 0; d < c_.value_dim; ++d) lanes[d % 16] += out.data[d] * grad.data[d];
      float sum = 0.0f;
      for (const float lane : lanes) sum += lane;
      const float lse = c_.lse[first + i];
      // A row without weights stays without: exp(score - inf) = 0.
      lse_[i] = lse == -std::numeric_limits<float>::infinity() ? -lse : lse;
      delta_[i] = sum - (b_.grad_lse ? b_.grad_lse[first + i] : 0.0f);
    }
  }

  void run_head(int64_t head) {
    const int64_t count = query_tiles_ * kTile * c_.dim;
    if (sums_) dqt_ = sums_ + (head - kv_head_ * (c_.heads / c_.kv_heads)) * count;
    std::fill_n(dqt_, count, 0.0f);
    const int64_t distances = c_.queries + c_.keys - 1;
    float* const dbias = b_.dbias ? b_.dbias + (batch_ * c_.heads + head) * distances : nullptr;
    if (dbias) std::fill_n(dbias, distances, 0.0f);
    prepare_rows(head);
    HeadSettings settings(c_, batch_, head);
    alignas(64) float around[HeadSettings::kWindow];
    const int64_t* const starts = c_.by_key.starts + c_.head_list[head] * key_tiles_;
    for (int64_t j = first_tile_; j < last_tile_; ++j) {
      if (starts[j] == starts[j + 1]) continue;
      const int64_t at = (j - first_tile_) * kTile;
      const int64_t key = j * kTile, keys = std::min(kTile, c_.keys - key);
      const FloatRows v = float_rows(c_.v, c_.is_bf16, batch_, kv_head_, key, keys, c_.value_dim, own_[0]);
      kernels_.turn(v.data, v.stride, keys, c_.value_dim, vt_);
      const FloatRows k = float_rows(c_.k, c_.is_bf16, batch_, kv_head_, key, keys, c_.dim, own_[0]);
      kernels_.turn(k.data, k.stride, keys, c_.dim, kt_);
      for (int64_t t = starts[j]; t < starts[j + 1]; ++t) {
        const int64_t query = c_.by_key.columns[t] * kTile, queries = std::min(kTile, c_.queries - query);
        // Lanes beyond the last key must add nothing to the gradient of a bias.
        const TileMask mask(c_, batch_, head, query, key, c_.by_key.masks[t], false, dbias);
        if (mask.is_empty()) continue;
        const FloatRows q = float_rows(c_.q, c_.is_bf16, batch_, head, query, queries, c_.dim, own_[1]);
        const FloatRows grad = float_rows(b_.grad, c_.is_bf16, batch_, head, query, queries, c_.value_dim, own_[2]);
        if (dbias) std::fill_n(around, HeadSettings::kWindow, 0.0f);
        float* const middle = around + 2 * kTile;
        kernels_.backward({settings.scores(query, key, false, mask.rows()), kt_, vt_, q.data, grad.data, k.data,
                           q.stride, grad.stride, k.stride, c_.dim, c_.value_dim, keys, lse_ + query, delta_ + query,
                           squares_[0], squares_[1], squares_[2], dqt_ + query * c_.dim, dkt_ + at * c_.dim,
                           dvt_ + at * c_.value_dim, dbias ? middle : nullptr});
        if (dbias) settings.each_distance(query, key, [&](int64_t d, int64_t place) { dbias[place] += middle[-d]; });
      }
    }
    if (sums_) return;
    for (int64_t i = 0; i < query_tiles_; ++i)
      write(b_.dq, head, i * kTile, c_.queries, c_.dim, dqt_ + i * kTile * c_.dim, c_.scale);
  }

  const AttentionBackwardCall& b_;
  const AttentionCall& c_;
  const AttentionKernels& kernels_;
  int64_t batch_, kv_head_, query_tiles_, key_tiles_, first_tile_, last_tile_;
  float* sums_;  // [heads of queries][queries padded * dim]
  int64_t wide_;
  Pieces pieces_;
  float *dqt_ = nullptr, *dkt_ = nullptr, *dvt_ = nullptr, *lse_ = nullptr, *delta_ = nullptr, *kt_ = nullptr,
        *vt_ = nullptr;
  float* squares_[3] = {};
  float* own_[4] = {};
};

// The gradient of a tile of queries: what the parts gave, in their order.
bool add_parts(const AttentionBackwardCall& b, const AttentionKernels& kernels, const float* parts, int64_t num_parts,
               int64_t batch, int64_t head, int64_t tile) {
  const AttentionCall& c = b.forward;
  const int64_t size = kTile * c.dim, all = tiles_of(c.queries) * size, group = c.heads / c.kv_heads;
  Pieces pieces(2 * size + 64);
  if (!pieces) return false;
  float *const sum = pieces.take(size), *const own = pieces.take(size);
  const int64_t first = (batch * c.kv_heads + head / group) * num_parts;
  for (int64_t p = 0; p < num_parts; ++p) {
    const float* const part = parts + ((first + p) * group + head % group) * all + tile * size;
    for (int64_t i = 0; i < size; ++i) sum[i] = p ? sum[i] + part[i] : part[i];
  }
  const int64_t query = tile * kTile;
  write_rows(kernels, b.dq, c.is_bf16, batch, head, query, std::min(kTile, c.queries - query), c.dim, sum, nullptr,
             c.scale, own);
  return true;
}

}  // namespace

void attention_forward(const AttentionCall& call, Isa isa, int num_threads) {
  const int64_t rows = tiles_of(call.queries);
  const AttentionKernels& kernels = attention_kernels_of(isa);
  run_tasks(call.batch * call.heads * rows, usable_threads(num_threads), [&](int64_t i) {
    return forward_row(call, kernels, i / rows / call.heads, i / rows % call.heads, i % rows);
  });
}

void attention_backward(const AttentionBackwardCall& call, Isa isa, int num_threads) {
  const AttentionCall& c = call.forward;
  const int64_t kv_heads = c.kv_heads, parts = key_parts(call), tiles = tiles_of(c.keys), rows = tiles_of(c.queries);
  const int64_t sums = parts > 1 ? c.heads / kv_heads * rows * kTile * c.dim : 0;
  const AttentionKernels& kernels = attention_kernels_of(isa);
  num_threads = usable_threads(num_threads);
  BigVector<float> waiting(static_cast<size_t>(c.batch * kv_heads * parts * sums));
  run_tasks(c.batch * kv_heads * parts, num_threads, [&](int64_t i) {
    const int64_t head = i / parts, part = i % parts;
    return BackwardHead(call, kernels, head / kv_heads, head % kv_heads, part * tiles / parts, (part + 1) * tiles / parts,
                        sums ? waiting.data() + i * sums : nullptr)
        .run();
  });
  if (!sums) return;
  run_tasks(c.batch * c.heads * rows, num_threads, [&](int64_t i) {
    return add_parts(call, kernels, waiting.data(), parts, i / rows / c.heads, i / rows % c.heads, i % rows);
  });
}

}  // namespace gossamer
