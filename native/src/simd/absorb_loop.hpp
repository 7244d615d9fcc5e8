// SPDX-License-Identifier: Apache-2.0
// Sums of squares in 32 lanes on every instruction set, so that all round alike. The compiler's own vectors.
#pragma once
#include "gossamer/absorb.hpp"

// No product and sum may be fused: sets without such an instruction would round otherwise.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")

namespace gossamer {
namespace {

constexpr int kAbsorbLanes = 32;
// Squares that lanes add up in float; the sums of such pieces are added in double.
constexpr int64_t kAbsorbPiece = 2048;

// Vectors as wide as registers: GCC keeps wider ones in memory.
struct AbsorbFour {
  typedef float Type __attribute__((vector_size(16)));
};
struct AbsorbEight {
  typedef float Type __attribute__((vector_size(32)));
};

// The mean square of a block; where it adds, the gradient goes into `held` first, and that is what is measured.
template <class Width, bool kAdds>
float absorb_block(const float* __restrict gradient, float* __restrict held, int64_t size) {
  using V = typename Width::Type;
  constexpr int L = sizeof(V) / 4, kVectors = kAbsorbLanes / L;
  double total = 0.0;
  for (int64_t start = 0; start < size; start += kAbsorbPiece) {
    const int64_t stop = start + kAbsorbPiece < size ? start + kAbsorbPiece : size;
    V squares[kVectors] = {};
    int64_t i = start;
    for (; i + kAbsorbLanes <= stop; i += kAbsorbLanes) {
#pragma GCC unroll 8
      for (int k = 0; k < kVectors; ++k) {
        V value, waiting;
        __builtin_memcpy(&value, gradient + i + k * L, sizeof value);
        if (kAdds) {
          __builtin_memcpy(&waiting, held + i + k * L, sizeof waiting);
          value += waiting;
          __builtin_memcpy(held + i + k * L, &value, sizeof value);
        }
        squares[k] += value * value;
      }
    }
    float lanes[kAbsorbLanes], sum = 0.0f;
    __builtin_memcpy(lanes, squares, sizeof lanes);
    for (int lane = 0; lane < kAbsorbLanes; ++lane) sum += lanes[lane];
    for (; i < stop; ++i) {
      const float value = kAdds ? gradient[i] + held[i] : gradient[i];
      if (kAdds) held[i] = value;
      sum += value * value;
    }
    total += sum;
  }
  return static_cast<float>(total / static_cast<double>(size));
}

template <class Width>
void absorb_blocks(const AbsorbCall& c, int64_t first, int64_t last) {
  float total = 0.0f;
  for (int64_t block = first; block < last; ++block) {
    c.fresh[block] = absorb_block<Width, false>(c.gradient + block * c.block_size, nullptr, c.block_size);
    total += c.fresh[block];
  }
  const bool finite = total - total == 0.0f;
  for (int64_t block = first; block < last; ++block) {
    const int64_t at = block * c.block_size;
    c.scores[block] = finite ? absorb_block<Width, true>(c.gradient + at, c.held + at, c.block_size) : c.fresh[block];
  }
}

}  // namespace
}  // namespace gossamer

#pragma GCC pop_options
