// SPDX-License-Identifier: Apache-2.0
// One AdamW step over a vector of weights, each read and written once.
//
// Every instruction set and every position in the vector give the same bits: each operation is rounded, the
// only fused one is written as such. torch's operations differ in the last bit (its square root is not
// always rounded to nearest), and its log2 may round an 8-bit code the other way.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

constexpr int64_t kCodeBlock = 256;       // entries that share an exponent
constexpr int64_t kDitherPeriod = 65536;  // entries after which the pattern begins again, shifted

// A moment in floats, or, where there are exponents, in bytes: a byte says how many eighths of an octave an entry
// lies below 2^exponent. Bytes of means are signed.
struct AdamwMoment {
  void* entries;
  int8_t* exponents;   // [ceil(count / kCodeBlock)]
  const float* table;  // [256], what the bytes mean below an exponent of 0
};

struct AdamwCall {
  int64_t count;
  // Without `low`: float weights and gradients. With it: bf16 ones, and the float master is, as bits,
  // weight * 65536 + low (16 bits) or weight * 65536 + low * 256 (8 bits, a master of 24).
  // The weight is the master rounded half up.
  void* weight;
  void* low;
  int low_bits;  // 0, 8, 16
  const void* grad;
  AdamwMoment mean, square;
  // What is added before rounding down to 8 bits: pattern[i % period] + shifts[i / period], modulo 1. Null
  // where nothing is rounded.
  const float *dither_pattern, *dither_shifts;
  float keep;                      // 1 - lr * weight_decay
  float mean_rate;                 // 1 - beta1
  float square_keep, square_rate;  // beta2, 1 - beta2
  float root_correction, eps;      // sqrt(1 - beta2^step)
  float step;                      // -lr / (1 - beta1^step)
};

// Entries first..last - 1; first is a multiple of kCodeBlock. Allocates and throws nothing.
struct AdamwKernels {
  void (*run)(const AdamwCall&, int64_t first, int64_t last);
};

namespace reference { extern const AdamwKernels adamw_kernels; }
namespace avx2 { extern const AdamwKernels adamw_kernels; }
namespace avx512 { extern const AdamwKernels adamw_kernels; }

// What the bytes of a moment mean below an exponent of 0, [256].
const float* code_table(bool is_signed);

void adamw_step(const AdamwCall& call, Isa isa, int num_threads);

}  // namespace gossamer
