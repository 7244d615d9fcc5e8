// SPDX-License-Identifier: Apache-2.0
#include "gossamer/adamw.hpp"

#include "in_parallel.hpp"

namespace gossamer {
namespace {

// Entries of a task: 20 bytes each stay in L2.
constexpr int64_t kTask = 32768;

const AdamwKernels& kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::adamw_kernels, avx2::adamw_kernels, avx512::adamw_kernels);
#else
  (void)isa;
  return reference::adamw_kernels;
#endif
}

}  // namespace

void adamw_step(const AdamwCall& call, Isa isa, int num_threads) {
  const AdamwKernels& kernels = kernels_of(isa);
  in_parallel((call.count + kTask - 1) / kTask, num_threads, [&](int64_t task) {
    const int64_t first = task * kTask;
    kernels.run(call, first, first + kTask < call.count ? first + kTask : call.count);
  });
}

}  // namespace gossamer
