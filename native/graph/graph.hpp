// SPDX-License-Identifier: Apache-2.0
// Sparse matrices of graphs times dense features, forward and backward.
//
// An edge goes from a source (column) to a target (row). The edges of a target lie together; the backward pass runs
// the same kernels on the transposed matrix, so that no two threads ever write the same row. The order of additions
// in a row is the order of its edges: results do not depend on the number of threads.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

// One direction of a graph. Places are numbers of edges in the other direction, or null where both agree: what
// belongs to edges (weights, attention) is stored once.
struct EdgeRows {
  int64_t rows;
  const int64_t* starts;   // [rows + 1]
  const int32_t* columns;  // [edges]
  const int32_t* row_ids;  // [rows], the row that lies at k; null = k
  const int32_t* places;   // [edges]

  int64_t row(int64_t k) const { return row_ids ? row_ids[k] : k; }
  int64_t place(int64_t e) const { return places ? places[e] : e; }
};

// y[row] = bias + sum over edges of values[edge] * x[column]; with several heads each has its own values and
// its own width / heads features. Null values are ones. Features are float, or bfloat16 as its bits: they are added up
// in float and rounded once.
template <class X>
struct SpmmCallOf {
  EdgeRows edges;
  const float* values;  // [edges, heads] by place
  int64_t heads;
  const float* bias;  // [width] or null
  const X* x;
  X* y;
  int64_t width;  // of a row of x and y, features * heads
};
using SpmmCall = SpmmCallOf<float>;
using Bf16SpmmCall = SpmmCallOf<uint16_t>;

// y[row] = largest x[column], 0 without edges; ties[row] = how many edges reach it, or null.
struct MaxCall {
  EdgeRows edges;
  const float* x;
  float *y, *ties;
  int64_t width;
};

// dx[row] = sum over edges of grad[column] where x[row] is y[column]; on the transposed edges.
struct MaxBackwardCall {
  EdgeRows edges;
  const float *x, *y, *grad;
  float* dx;
  int64_t width;
};

// out[edge, head] = grad[row, head] . x[column, head].
struct SddmmCall {
  EdgeRows edges;
  const float *grad, *x;
  float* out;
  int64_t heads, width;
};

// weights[edge] = softmax over the edges of a row of leaky(target[row] + source[column]), or of logits that
// are given in `weights` where target is null.
struct SoftmaxCall {
  EdgeRows edges;
  const float *target, *source;  // [rows, heads], [columns, heads]
  float slope;
  float* weights;  // [edges, heads]
  int64_t heads;
};

// In place: from the gradient of the weights to that of the logits, before the leaky ReLU where there is one;
// sums[row] = sum of it over the edges of a row, or null.
struct SoftmaxBackwardCall {
  SoftmaxCall forward;
  float* grad;  // [edges, heads]
  float* sums;
};

// sums[row, head] = sum of values[edge, head].
struct EdgeSumCall {
  EdgeRows edges;
  const float* values;
  float* sums;
  int64_t heads;
};

// logits[edge, head] = att[head] . leaky(target[row, head] + source[column, head]) (GATv2).
struct PairLogitsCall {
  EdgeRows edges;
  const float *target, *source, *att;
  float slope;
  float* logits;
  int64_t heads, width;
};

// dx[row] = sum over edges of grad[edge] * att * leaky'(own[row] + other[column]); datt gets the sum over all edges
// of grad[edge] * leaky(...), or is null.
struct PairBackwardCall {
  EdgeRows edges;
  const float *own, *other, *att, *grad;
  float slope;
  float *dx, *datt;  // datt of one part
  int64_t heads, width;
};

// Features [rows, width] without their zeros. Counting: starts[row + 1] = how many numbers of a row are not 0. Filling:
// starts are where rows begin in columns and values.
struct SqueezeCall {
  const float* x;
  int64_t width;
  int64_t* starts;
  int32_t* columns;  // null = count
  float* values;
};

// Rows first..last - 1 as they lie; features where they are cut. Allocate and throw nothing.
struct GraphKernels {
  int64_t chunk;  // features that are best done in one pass over the edges
  void (*spmm)(const SpmmCall&, int64_t first, int64_t last, int64_t from, int64_t to);
  void (*max)(const MaxCall&, int64_t first, int64_t last);
  void (*max_backward)(const MaxBackwardCall&, int64_t first, int64_t last);
  void (*sddmm)(const SddmmCall&, int64_t first, int64_t last);
  void (*softmax)(const SoftmaxCall&, int64_t first, int64_t last);
  void (*softmax_backward)(const SoftmaxBackwardCall&, int64_t first, int64_t last);
  void (*edge_sum)(const EdgeSumCall&, int64_t first, int64_t last);
  void (*pair_logits)(const PairLogitsCall&, int64_t first, int64_t last);
  void (*pair_backward)(const PairBackwardCall&, int64_t first, int64_t last);
  void (*squeeze)(const SqueezeCall&, int64_t first, int64_t last);
  void (*bf16_spmm)(const Bf16SpmmCall&, int64_t first, int64_t last, int64_t from, int64_t to);
};

namespace reference { extern const GraphKernels graph_kernels; }
namespace avx2 { extern const GraphKernels graph_kernels; }
namespace avx512 { extern const GraphKernels graph_kernels; }

constexpr int64_t kMostHeads = 256;

void graph_spmm(const SpmmCall& call, Isa isa, int num_threads);
void graph_bf16_spmm(const Bf16SpmmCall& call, Isa isa, int num_threads);
void graph_max(const MaxCall& call, Isa isa, int num_threads);
void graph_max_backward(const MaxBackwardCall& call, Isa isa, int num_threads);
void graph_sddmm(const SddmmCall& call, Isa isa, int num_threads);
// Softmax and the product with its weights, a few rows at a time; `kept` are the weights after dropout and
// `keep` what it multiplied them by, both null without it.
void graph_attention(const SoftmaxCall& softmax, const SpmmCall& product, const float* keep, float* kept, Isa isa,
                     int num_threads);
// The gradient of weights (products, times keep) and of logits, a few rows at a time.
void graph_attention_backward(const SddmmCall& product, const SoftmaxBackwardCall& softmax, const float* keep, Isa isa,
                              int num_threads);
void graph_edge_sum(const EdgeSumCall& call, Isa isa, int num_threads);
void graph_pair_logits(const PairLogitsCall& call, Isa isa, int num_threads);
void graph_pair_backward(const PairBackwardCall& call, Isa isa, int num_threads);
// Counts rows 0..rows - 1 into starts [rows + 1] and adds them up; gives their sum.
int64_t graph_count(SqueezeCall call, int64_t rows, Isa isa, int num_threads);
void graph_squeeze(const SqueezeCall& call, int64_t rows, Isa isa, int num_threads);

// CSR by target of edges source -> target, in their order: starts [rows + 1], columns and numbers [edges].
// The endpoints have been checked. `row_order` gives the rows in the order in which they shall lie, or is null.
void edges_to_rows(const int64_t* sources, const int64_t* targets, int64_t num_edges, int64_t rows,
                   const int32_t* row_order, int64_t* starts, int32_t* columns, int32_t* numbers);

// Reverse Cuthill-McKee over both directions of a square graph: order[k] is the node that comes k-th.
void cuthill_mckee(const EdgeRows& in, const EdgeRows& out, int32_t* order);

// At most `fanout` neighbours of each row of `rows`, without repetition, by a generator that depends on seed, row
// and nothing else. Gives the number of edges; positions [count * fanout] are places in `edges.columns`, counts [count].
int64_t sample_neighbours(const EdgeRows& edges, const int64_t* rows, int64_t count, int64_t fanout, uint64_t seed,
                          int64_t* positions, int64_t* counts);

}  // namespace gossamer
