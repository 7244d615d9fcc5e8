// SPDX-License-Identifier: Apache-2.0
// One AdamW step over a vector of weights, each read and written once.
//
// Every instruction set and every position in the vector give the same bits: each operation is rounded, the
// only fused one is written as such. torch's operations differ in the last bit (its square root is not
// always rounded to nearest).
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

struct AdamwCall {
  int64_t count;
  // Without `low`: float weights and gradients. With it: bf16 ones, and weight * 65536 + low, as bits, is the
  // float master; the weight is the master rounded half up.
  void* weight;
  int16_t* low;
  const void* grad;
  float *mean, *square;
  float keep;                      // 1 - lr * weight_decay
  float mean_rate;                 // 1 - beta1
  float square_keep, square_rate;  // beta2, 1 - beta2
  float root_correction, eps;      // sqrt(1 - beta2^step)
  float step;                      // -lr / (1 - beta1^step)
};

// Entries first..last - 1. Allocates and throws nothing.
struct AdamwKernels {
  void (*run)(const AdamwCall&, int64_t first, int64_t last);
};

namespace reference { extern const AdamwKernels adamw_kernels; }
namespace avx2 { extern const AdamwKernels adamw_kernels; }
namespace avx512 { extern const AdamwKernels adamw_kernels; }

void adamw_step(const AdamwCall& call, Isa isa, int num_threads);

}  // namespace gossamer
