// SPDX-License-Identifier: Apache-2.0
// Attention over a list of tiles of 64 queries x 64 keys, forward and backward.
//
// Scores of a tile exist in the cache only. The forward keeps the logarithm of the sum of each row; the backward
// computes weights from it again. Softmax runs over lanes: a vector holds sixteen queries (in the backward keys), so
// that maxima and sums need no steps across lanes, and keys, values and queries are read as they lie.
//
// A row of the result belongs to one task, and its tiles are added in the order of the list: results do not depend on
// the number of threads.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

constexpr int64_t kTile = 64;      // queries and keys of a tile
constexpr int64_t kMostDim = 1024;  // of a head
constexpr float kLowestScore = -1e30f;  // what is as low counts as masked

// One direction of the tiles: `columns` of row r of list l are at starts[l * rows + r] and on.
struct TileRows {
  const int64_t* starts;   // [lists * rows + 1]
  const int32_t* columns;  // [tiles]
  const int32_t* masks;    // [tiles], the number of a mask, -1 = all pairs
};

// [batch, heads, tokens, dim] with any strides but the last, which is 1; float or bf16.
struct HeadRows {
  void* data;
  int64_t batch, head, token;  // strides in elements
};

struct AttentionCall {
  int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
  bool is_bf16;
  HeadRows q, k, v, out;
  float* lse;                // [batch, heads, queries]; -inf where a query attends to nothing
  TileRows by_query, by_key;  // the latter for the backward
  const int32_t* head_list;  // [heads], which list of tiles
  const uint64_t* masks;     // [masks][2][64]: for each query bits over keys, for each key bits over queries
  const int32_t* ranges;     // [batch, queries, 2]: keys from..to - 1 that a query may see; null = all
  const int32_t* positions;  // [batch, heads, queries], keys have the same: no key may stand behind its query; or null
  const float* bias;         // [heads, queries + keys - 1] at (query - key) + keys - 1, added to scores; or null
  float scale, cap;          // score = cap * tanh(scale * q.k / cap) + bias; cap 0 = none
  uint32_t drop;             // a weight is kept if its 32 random bits are above it; 0 = all are
  float keep_scale;          // 1 / (1 - p)
  uint64_t seed;
};

struct AttentionBackwardCall {
  AttentionCall forward;
  HeadRows grad;
  const float* grad_lse;  // [batch, heads, queries] or null
  HeadRows dq, dk, dv;
  float* dbias;  // [batch, heads, queries + keys - 1] or null
};

// What both kinds of tile have. Lanes are the 64 columns, the other side is rows.
struct TileScores {
  int64_t rows;
  float scale, cap;
  const uint64_t* mask;   // for each row bits over lanes, or null
  const float* bias;      // at (lane - row) of the forward or the backward, or null; 127 around it can be read
  uint32_t drop;
  float keep_scale;
  const uint32_t* row_bits;   // [64] random bits of rows and of lanes, or null
  const uint32_t* lane_bits;
};

// Rows are keys, lanes queries.
struct ForwardTile {
  TileScores s;
  const float* qt;  // [dim][64]
  const float *k, *v;
  int64_t k_stride, v_stride, dim, value_dim;
  float* scores;          // [64][64]
  float *most, *total;    // [64]
  float* ot;              // [value_dim][64]
};

// Rows are queries, lanes keys.
struct BackwardTile {
  TileScores s;
  const float *kt, *vt;  // [dim][64], [value_dim][64]
  const float *q, *grad, *k;
  int64_t q_stride, grad_stride, k_stride, dim, value_dim, keys;
  const float *lse, *delta;  // [rows]
  float *weights, *dscores, *turned;  // [64][64]
  float *dqt, *dkt, *dvt;             // added to
  float* dbias;                       // as s.bias, added to; or null
};

// Allocate and throw nothing. Addresses of tiles are multiples of 64 bytes; those of tensors need not be.
struct AttentionKernels {
  void (*forward)(const ForwardTile&);
  void (*backward)(const BackwardTile&);
  // to[d][64] = from[rows][d] turned, lanes beyond rows zero.
  void (*turn)(const float* from, int64_t stride, int64_t rows, int64_t dim, float* to);
  // to[rows][dim] = from[dim][64] turned, times factor[lane] (null = 1) times scale.
  void (*turn_back)(const float* from, int64_t rows, int64_t dim, const float* factor, float scale, float* to,
                    int64_t stride);
};

namespace reference { extern const AttentionKernels attention_kernels; }
namespace avx2 { extern const AttentionKernels attention_kernels; }
namespace avx512 { extern const AttentionKernels attention_kernels; }

const AttentionKernels& attention_kernels_of(Isa isa);
void attention_forward(const AttentionCall& call, Isa isa, int num_threads);
void attention_backward(const AttentionBackwardCall& call, Isa isa, int num_threads);

// The 32 random bits of a pair are mix(row ^ column) of these; all sets of kernels agree.
struct DropBits {
  uint32_t row_key, column_key;
  DropBits(uint64_t seed, int64_t head);  // head counts over the batch
  uint32_t query(int64_t i) const { return mix(static_cast<uint32_t>(i) + row_key); }
  uint32_t key(int64_t j) const { return static_cast<uint32_t>(j) * 0x9e3779b9u + column_key; }
  static uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
  }
};

}  // namespace gossamer
