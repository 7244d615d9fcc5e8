// SPDX-License-Identifier: Apache-2.0
// A gradient is added to the sum of those before it, and both are measured block by block, while they are in cache.
//
// Every instruction set gives the same bits, and so does any number of threads.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

struct AbsorbCall {
  int64_t num_blocks, block_size;
  const float* gradient;  // [num_blocks, block_size]
  float* held;            // [num_blocks, block_size], the gradient is added to it
  float* fresh;           // [num_blocks], becomes the mean square of the gradient
  float* scores;          // [num_blocks], becomes the mean square of what is held then
};

// Blocks that are looked at together. Where the gradient of one has a number that is not finite none of them is
// changed, and scores become the mean squares of the gradient, one of which is not finite then.
int64_t absorbed_together(int64_t block_size);

// Blocks first..last - 1, which are looked at together. Allocates and throws nothing.
struct AbsorbKernels {
  void (*run)(const AbsorbCall&, int64_t first, int64_t last);
};

namespace reference { extern const AbsorbKernels absorb_kernels; }
namespace avx2 { extern const AbsorbKernels absorb_kernels; }
namespace avx512 { extern const AbsorbKernels absorb_kernels; }

void absorb(const AbsorbCall& call, Isa isa, int num_threads);

}  // namespace gossamer
