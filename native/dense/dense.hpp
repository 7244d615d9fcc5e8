// SPDX-License-Identifier: Apache-2.0
// What stands around a dense int8 product: activations become bytes with a scale per
// token, and the product's sums get that scale and the bias. The numbers are those of gossamer/int8.hpp.
//
// Every instruction set gives the same bits, and so does any number of threads.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

struct TokensToBytes {
  const float* x;  // [tokens, columns], rows `stride` apart
  int64_t tokens, columns, stride;
  int bits;        // 7 or 8: bytes are q + 2^(bits - 1), |q| < 2^(bits - 1)
  uint8_t* bytes;  // [tokens, columns]; null if nobody wants them
  float* numbers;  // [tokens + 1, columns], q itself; null if nobody wants it. The last row begins with the least and
                   // the largest q there is: who takes a scale from them finds 1
  float* scales;   // [tokens], what a step is worth: NaN for a token that holds one or an infinity
  int64_t bytes_stride = 0;  // between tokens of `bytes`; 0: columns
};

struct FinishTokens {
  float* y;  // [tokens, rows], becomes y * scale + bias
  int64_t tokens, rows;
  const float* scales;  // [tokens], or null for 1
  const float* bias;    // [rows], or null for 0
};

// Tokens first..last - 1. Allocates and throws nothing.
struct DenseKernels {
  void (*to_bytes)(const TokensToBytes&, int64_t first, int64_t last);
  void (*finish)(const FinishTokens&, int64_t first, int64_t last);
};

namespace reference { extern const DenseKernels dense_kernels; }
namespace avx2 { extern const DenseKernels dense_kernels; }
namespace avx512 { extern const DenseKernels dense_kernels; }

void tokens_to_bytes(const TokensToBytes& call, Isa isa, int num_threads);
void finish_tokens(const FinishTokens& call, Isa isa, int num_threads);

}  // namespace gossamer
