// SPDX-License-Identifier: Apache-2.0
#include "gossamer/absorb.hpp"

#include "in_parallel.hpp"

namespace gossamer {
namespace {

// Elements: 64 KiB of gradient are still in L2 when they are added after being measured.
constexpr int64_t kTogether = 16384;

const AbsorbKernels& kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::absorb_kernels, avx2::absorb_kernels, avx512::absorb_kernels);
#else
  (void)isa;
  return reference::absorb_kernels;
#endif
}

}  // namespace

int64_t absorbed_together(int64_t block_size) {
  return block_size >= kTogether || block_size < 1 ? 1 : kTogether / block_size;
}

void absorb(const AbsorbCall& call, Isa isa, int num_threads) {
  const AbsorbKernels& kernels = kernels_of(isa);
  const int64_t together = absorbed_together(call.block_size);
  in_parallel((call.num_blocks + together - 1) / together, num_threads, [&](int64_t task) {
    const int64_t first = task * together;
    kernels.run(call, first, first + together < call.num_blocks ? first + together : call.num_blocks);
  });
}

}  // namespace gossamer
