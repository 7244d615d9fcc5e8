// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "dense.hpp"
#include "in_parallel.hpp"

namespace gossamer {
namespace {

// Elements that are worth a thread.
constexpr int64_t kPerTask = 32768;

const DenseKernels& kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::dense_kernels, avx2::dense_kernels, avx512::dense_kernels);
#else
  (void)isa;
  return reference::dense_kernels;
#endif
}

template <class Body>
void over_tokens(int64_t tokens, int64_t width, int num_threads, Body body) {
  const int64_t together = width >= kPerTask ? 1 : kPerTask / (width > 0 ? width : 1);
  in_parallel((tokens + together - 1) / together, num_threads, [&](int64_t task) {
    const int64_t first = task * together;
    body(first, first + together < tokens ? first + together : tokens);
  });
}

}  // namespace

void tokens_to_bytes(const TokensToBytes& call, Isa isa, int num_threads) {
  const DenseKernels& kernels = kernels_of(isa);
  over_tokens(call.tokens, call.columns, num_threads,
              [&](int64_t first, int64_t last) { kernels.to_bytes(call, first, last); });
  if (!call.numbers) return;
  float* const ends = call.numbers + call.tokens * call.columns;
  const int offset = 1 << (call.bits - 1);
  std::fill_n(ends, call.columns, 0.0f);
  if (call.columns > 0) ends[0] = static_cast<float>(-offset);
  if (call.columns > 1) ends[1] = static_cast<float>(offset - 1);
}

void finish_tokens(const FinishTokens& call, Isa isa, int num_threads) {
  const DenseKernels& kernels = kernels_of(isa);
  over_tokens(call.tokens, call.rows, num_threads,
              [&](int64_t first, int64_t last) { kernels.finish(call, first, last); });
}

}  // namespace gossamer
