// SPDX-License-Identifier: Apache-2.0
// What the kernels for few tokens share: the types a value is stored in, the copy of x they read, and
// the end of a call. All in unnamed namespaces: each instruction set has its own copy.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "gossamer/bf16.hpp"
#include "gossamer/few.hpp"
#include "simd/activation.hpp"

namespace gossamer {
namespace {

struct Fp32 { static constexpr int kBits = 32; };
struct Bf16 { static constexpr int kBits = 16; };
struct Int8 { static constexpr int kBits = 8; };
// Decoded as nibble << 28, which converts exactly: kUnit is what it must be multiplied by.
struct Int4 { static constexpr int kBits = 4; static constexpr float kUnit = 0x1p-28f; };

// Asks for values some lines ahead; once per 64 bytes is enough, and more often costs. Indexed fp32 of
// 4096x4096, 80 % zeros, cold: none 1070, 1024 bytes ahead 1000, 2048 870, 4096 900 us.
// Always inline: GCC 12 takes a function that only prefetches for one without effect and drops the calls.
__attribute__((always_inline)) inline void prefetch(const uint8_t* values) {
  constexpr int64_t kAhead = 2048;
  _mm_prefetch(reinterpret_cast<const char*>(values) + kAhead, _MM_HINT_T0);
}

template <class D>
constexpr bool is_int4 = D::kBits == 4;

inline uint32_t load_u32(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
inline uint64_t load_u64(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// x of up to 16 tokens with zeros behind its columns and for the tokens that fill a tile up.
inline void copy_x(const FewView& view, const LinearCall& call, int64_t first, int64_t tokens, float* copy) {
  const int64_t stride = few_x_stride(view);
  for (int64_t t = 0; t < padded_tokens(tokens); ++t) {
    const float* x = call.x + (first + t) * call.x_stride;
    const int64_t real = t < tokens ? view.columns : 0;
    for (int64_t k = 0; k < real; ++k) copy[t * stride + k] = x[k];
    for (int64_t k = real; k < stride; ++k) copy[t * stride + k] = 0.0f;
  }
}

inline void finish(const LinearCall& call, int64_t first_row, int64_t last_row) {
  for (int64_t t = 0; t < call.tokens; ++t)
    activate(call.y + t * call.y_stride + first_row, last_row - first_row, call.activation);
}

// Where the sums of one row go: y of the tokens first.. of a tile, scaled, with the bias.
struct RowEnd {
  const FewView& view;
  const LinearCall& call;

  template <class D>
  void store(D, int64_t row, int64_t token, float sum, float int8_unit = 1.0f) const {
    if (token >= call.tokens) return;
    if (D::kBits == 8) sum *= view.row_scales[row] * int8_unit;
    call.y[token * call.y_stride + row] = call.bias ? sum + call.bias[row] : sum;
  }
};

}  // namespace
}  // namespace gossamer
