// SPDX-License-Identifier: Apache-2.0
// y = x W^T for 1 to 16 tokens: the weight is streamed from memory once per call, so its bytes are
// the cost. Values are stored as fp32, bf16, int8 (one fp32 scale per row) or int4 (one bf16 scale
// per run of values); arithmetic is fp32. Three ways to say where the kept weights are:
//
//   bitmask  one bit per weight; kept values are expanded to their columns. Any mask.
//   indexed  groups of 8 kept weights of a row, one byte each. Any mask, faster than bitmask at 80 % zeros and more.
//   nm       at most N of M consecutive columns: lanes are rows, every lane picks its activation by
//            a permutation of the M that are loaded; no counting, no gathers.
//
// A weight that is not kept may be multiplied as 0, as in the dense product: an infinite or NaN
// activation can reach outputs that do not keep its column.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/linear.hpp"

namespace gossamer {

enum class FewForm : int { bitmask = 0, indexed = 1, nm = 2 };
enum class ValueType : int { fp32 = 0, bf16 = 1, int8 = 2, int4 = 3 };

constexpr int kFewTokens = 16;     // tokens that share one pass over the weight
constexpr int kFewStep = 32;       // columns of a bitmask step
constexpr int kIndexedGroup = 8;   // kept weights that share one 8-byte index

struct FewView {
  int64_t rows, columns;
  ValueType type;
  // bitmask: mask bits [rows][mask_stride], a multiple of 4 bytes.
  // indexed: 8 bytes per group: columns from the first weight of the group before (of the row's
  //          start, for its first group), then of the other seven weights from the group's first.
  // nm:      [strip][group][slot][lanes / 8][position_bits bytes]: a position inside the window for
  //          8 rows each.
  const uint8_t* positions;
  const uint8_t* values;        // int4: two per byte, low nibble first
  const int64_t* row_starts;    // bitmask: a row's first value; indexed: its first group
  const float* row_scales;      // int8
  const uint16_t* scales;       // int4, bf16
  const int64_t* scale_starts;  // int4, indexed: a row's first scale
  int64_t mask_stride;          // bitmask
  int64_t scale_span;           // int4: bitmask columns, indexed groups, nm slots that share a scale
  int64_t window, slots;        // nm: M and N
  int64_t lanes, position_bits; // nm: rows of a strip; 2, 3, 4 or 8
};

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens that are computed together: 1, 2, 4 or 8, and 16 as twice 8.
static inline int64_t padded_tokens(int64_t tokens) {
  return tokens <= 2 ? tokens : tokens <= 4 ? 4 : tokens <= 8 ? 8 : kFewTokens;
}

// Floats between two tokens of the copy of x. The odd line keeps tokens out of each other's L1 sets.
static inline int64_t few_x_stride(const FewView& view) {
  return ceil_div(view.columns, kFewStep) * kFewStep + 48;
}
static inline size_t few_scratch_floats(const FewView& view, int64_t tokens) {
  const int64_t tile = tokens < kFewTokens ? tokens : kFewTokens;
  return static_cast<size_t>(few_x_stride(view)) * (tile == 1 ? 1 : kFewTokens);
}

// y[all tokens, first_row..last_row) = act(x W^T + bias). Allocates and throws nothing. `scratch` is
// 64-byte aligned; first_row is a multiple of 16.
using FewKernel = void (*)(const FewView&, const LinearCall&, int64_t first_row, int64_t last_row,
                           float* scratch);

struct FewKernels {
  FewKernel run[3][4];  // [FewForm][ValueType]
  int64_t lanes;        // rows of an nm strip: 8 or 16
};

namespace reference { extern const FewKernels few_kernels; }
namespace avx2 { extern const FewKernels few_kernels; }
namespace avx512 { extern const FewKernels few_kernels; }

}  // namespace gossamer
