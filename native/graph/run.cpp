// SPDX-License-Identifier: Apache-2.0
// Rows over threads: parts with about as many edges each, however unequal the rows are.
#include <algorithm>
#include <vector>

#include "gossamer/fork.hpp"
#include "graph.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

const GraphKernels& kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::graph_kernels, avx2::graph_kernels, avx512::graph_kernels);
#else
  (void)isa;
  return reference::graph_kernels;
#endif
}

constexpr int64_t kPartsPerThread = 8;
constexpr int64_t kFewRows = 64;   // whose attention stays in L1 between two kernels
constexpr int64_t kSumParts = 32;  // of a sum over all edges; fixed, as the order of additions follows it

// The first row of part i of n: a row counts as its edges and one.
int64_t part_start(const EdgeRows& edges, int64_t i, int64_t n) {
  if (i == 0) return 0;
  if (i == n) return edges.rows;
  const int64_t work = (edges.starts[edges.rows] + edges.rows) / n * i;
  int64_t low = 0, high = edges.rows;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (edges.starts[middle] + middle < work)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// task(first row, last row) over all rows.
template <class Task>
void over_rows(const EdgeRows& edges, int num_threads, Task&& task) {
  const int threads = usable_threads(num_threads);
  const int64_t parts = threads > 1 ? std::max<int64_t>(std::min<int64_t>(threads * kPartsPerThread, edges.rows), 1) : 1;
  run_tasks(parts, threads, [&](int64_t i) {
    const int64_t first = part_start(edges, i, parts), last = part_start(edges, i + 1, parts);
    if (first < last) task(first, last);
    return true;
  });
}

template <class Task>
void few_rows_at_a_time(int64_t first, int64_t last, Task&& task) {
  for (int64_t row = first; row < last; row += kFewRows) task(row, std::min(row + kFewRows, last));
}

void multiply(const float* __restrict a, const float* __restrict b, float* __restrict to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = a[i] * b[i];
}

// All features of some rows, in passes of at most a chunk of equal size.
template <class Run>
void over_features(int64_t width, int64_t chunk, Run&& run) {
  const int64_t passes = std::max<int64_t>((width + chunk - 1) / chunk, 1);
  const int64_t step = (width + passes - 1) / passes;
  const int64_t size = std::max<int64_t>((step + 15) / 16 * 16, 16);
  for (int64_t from = 0; from < width; from += size) run(from, std::min(from + size, width));
}

}  // namespace

void graph_spmm(const SpmmCall& call, Isa isa, int num_threads) {
  const GraphKernels& kernels = kernels_of(isa);
  over_features(call.width, kernels.chunk, [&](int64_t from, int64_t to) {
    over_rows(call.edges, num_threads,
              [&](int64_t first, int64_t last) { kernels.spmm(call, first, last, from, to); });
  });
}

void graph_bf16_spmm(const Bf16SpmmCall& call, Isa isa, int num_threads) {
  const GraphKernels& kernels = kernels_of(isa);
  over_features(call.width, kernels.chunk, [&](int64_t from, int64_t to) {
    over_rows(call.edges, num_threads,
              [&](int64_t first, int64_t last) { kernels.bf16_spmm(call, first, last, from, to); });
  });
}

void graph_max(const MaxCall& call, Isa isa, int num_threads) {
  over_rows(call.edges, num_threads, [&](int64_t first, int64_t last) { kernels_of(isa).max(call, first, last); });
}

void graph_max_backward(const MaxBackwardCall& call, Isa isa, int num_threads) {
  over_rows(call.edges, num_threads,
            [&](int64_t first, int64_t last) { kernels_of(isa).max_backward(call, first, last); });
}

void graph_sddmm(const SddmmCall& call, Isa isa, int num_threads) {
  over_rows(call.edges, num_threads, [&](int64_t first, int64_t last) { kernels_of(isa).sddmm(call, first, last); });
}

void graph_attention(const SoftmaxCall& softmax, const SpmmCall& product, const float* keep, float* kept, Isa isa,
                     int num_threads) {
  const GraphKernels& kernels = kernels_of(isa);
  const int64_t* starts = softmax.edges.starts;
  over_rows(softmax.edges, num_threads, [&](int64_t begin, int64_t end) {
    few_rows_at_a_time(begin, end, [&](int64_t first, int64_t last) {
      kernels.softmax(softmax, first, last);
      if (keep) {
        const int64_t from = starts[first] * softmax.heads, to = starts[last] * softmax.heads;
        multiply(softmax.weights + from, keep + from, kept + from, to - from);
      }
      over_features(product.width, kernels.chunk,
                    [&](int64_t from, int64_t to) { kernels.spmm(product, first, last, from, to); });
    });
  });
}

void graph_attention_backward(const SddmmCall& product, const SoftmaxBackwardCall& softmax, const float* keep, Isa isa,
                              int num_threads) {
  const GraphKernels& kernels = kernels_of(isa);
  const int64_t* starts = product.edges.starts;
  over_rows(product.edges, num_threads, [&](int64_t begin, int64_t end) {
    few_rows_at_a_time(begin, end, [&](int64_t first, int64_t last) {
      kernels.sddmm(product, first, last);
      if (keep) {
        const int64_t from = starts[first] * product.heads, to = starts[last] * product.heads;
        for (int64_t i = from; i < to; ++i) product.out[i] *= keep[i];
      }
      kernels.softmax_backward(softmax, first, last);
    });
  });
}

void graph_edge_sum(const EdgeSumCall& call, Isa isa, int num_threads) {
  over_rows(call.edges, num_threads, [&](int64_t first, int64_t last) { kernels_of(isa).edge_sum(call, first, last); });
}

void graph_pair_logits(const PairLogitsCall& call, Isa isa, int num_threads) {
  over_rows(call.edges, num_threads,
            [&](int64_t first, int64_t last) { kernels_of(isa).pair_logits(call, first, last); });
}

void graph_pair_backward(const PairBackwardCall& call, Isa isa, int num_threads) {
  const GraphKernels& kernels = kernels_of(isa);
  if (!call.datt) {
    over_rows(call.edges, num_threads,
              [&](int64_t first, int64_t last) { kernels.pair_backward(call, first, last); });
    return;
  }
  const int64_t parts = std::max<int64_t>(std::min(kSumParts, call.edges.rows), 1);
  std::vector<float> sums(static_cast<size_t>(parts * call.width), 0.0f);
  run_tasks(parts, usable_threads(num_threads), [&](int64_t i) {
    PairBackwardCall part = call;
    part.datt = sums.data() + i * call.width;
    kernels.pair_backward(part, part_start(call.edges, i, parts), part_start(call.edges, i + 1, parts));
    return true;
  });
  std::fill(call.datt, call.datt + call.width, 0.0f);
  for (int64_t i = 0; i < parts; ++i)
    for (int64_t f = 0; f < call.width; ++f) call.datt[f] += sums[static_cast<size_t>(i * call.width + f)];
}

namespace {

// All rows in parts of as many rows each.
void squeeze_rows(const SqueezeCall& call, int64_t rows, Isa isa, int num_threads) {
  const int threads = usable_threads(num_threads);
  const int64_t parts = threads > 1 ? std::max<int64_t>(std::min<int64_t>(threads * kPartsPerThread, rows), 1) : 1;
  run_tasks(parts, threads, [&](int64_t i) {
    kernels_of(isa).squeeze(call, rows * i / parts, rows * (i + 1) / parts);
    return true;
  });
}

}  // namespace

int64_t graph_count(SqueezeCall call, int64_t rows, Isa isa, int num_threads) {
  call.columns = nullptr;
  call.starts[0] = 0;
  squeeze_rows(call, rows, isa, num_threads);
  for (int64_t k = 0; k < rows; ++k) call.starts[k + 1] += call.starts[k];
  return call.starts[rows];
}

void graph_squeeze(const SqueezeCall& call, int64_t rows, Isa isa, int num_threads) {
  squeeze_rows(call, rows, isa, num_threads);
}

}  // namespace gossamer
