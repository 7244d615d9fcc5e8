// SPDX-License-Identifier: Apache-2.0
// y = x W^T for few tokens in integers. Activations are quantised inside the call, 64 columns of a token
// sharing a scale; weights are int8 (one scale per row) or int4 (one scale per run of columns), kept ones
// behind one another beside their mask bits, or all of them without a mask. Where `few.hpp` spends its
// time on turning small values into floats, 64 columns are multiplied by a few instructions here, and the
// bytes of the weight are what is left (AVX2: of a weight without mask).
//
// int4 without a mask may have offsets: a weight is then scale x code + offset, with fp16 for both, and what
// offsets add is their product with the sum of a group's activations, which all rows share.
//
// Sums of 64 columns (32, where those have a scale) are exact integers; they are scaled and added up in fp32, lane by lane, so every
// instruction set gives the same result within rounding. A NaN or an infinity makes all outputs of its
// token NaN.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/linear.hpp"

namespace gossamer {

constexpr int64_t kIntStep = 64;      // columns of a step
constexpr int64_t kIntHalf = 32;      // the fewest columns that have a scale of their own
constexpr int64_t kIntTokens = 16;    // tokens that are multiplied side by side
constexpr int64_t kIntPass = 128;     // tokens that share one unpacking of the weights
constexpr int64_t kIntRowUnit = 16;   // rows whose values start at a known place

// int8 values of a step follow those of the step before. int4: steps 2p and 2p + 1 of a row share their bytes,
// one has the low and the other the high nibbles, so that no bits move between bytes when they are read (the
// shorter one is filled up, 3 % at half zeros); the last of an odd number of steps has two values in a byte,
// low nibble first.
struct FewIntView {
  int64_t rows, columns, steps;
  bool is_int4;
  const uint64_t* masks;        // [rows][steps]; null if all weights are kept
  const uint8_t* values;        // value + 128, int4: + 8, with offsets the code itself
  const int64_t* unit_starts;   // first byte of every kIntRowUnit rows
  const float* row_scales;      // int8
  const uint16_t* scales;       // int4, bf16, with offsets fp16: [rows][scales_of_row], kIntSpareScales behind them
  const uint16_t* offsets;      // as the scales; null if there are none
  int64_t span, scales_of_row;  // int4: steps that share a scale
  bool has_halves;              // offsets only: a scale for every kIntHalf columns, span is 1
};

constexpr int64_t kIntSpareScales = 16;  // kernels read whole vectors of them

static inline int64_t scale_of_column(const FewIntView& view, int64_t column) {
  return view.has_halves ? column / kIntHalf : column / kIntStep / view.span;
}

// What a kernel needs besides: activations of a pass as bytes with scales, sums and starts of their groups, three units
// of rows unpacked, and the numbers of all groups of two.
static inline int64_t int_scale_stride(const FewIntView& view) { return (view.steps + 15) / 16 * 16; }
static inline size_t few_int_scratch_bytes(const FewIntView& view) {
  const int64_t steps = int_scale_stride(view) + 16;  // no scratch at all would look like no memory
  return static_cast<size_t>(steps * ((kIntPass + 3 * kIntRowUnit) * kIntStep + 2 * (3 * kIntPass + 4 * kIntRowUnit) * 4 + 4));
}

// y[all tokens, first_row..last_row) = act(x W^T + bias). Allocates and throws nothing. `scratch` is
// 64-byte aligned; first_row is a multiple of kIntRowUnit.
using FewIntKernel = void (*)(const FewIntView&, const LinearCall&, int64_t first_row, int64_t last_row,
                              void* scratch);

namespace reference { extern const FewIntKernel few_int_kernel; }
namespace avx2 { extern const FewIntKernel few_int_kernel; }
namespace avx512vnni { extern const FewIntKernel few_int_kernel; }
namespace avx512vbmi2 { extern const FewIntKernel few_int_kernel; }

}  // namespace gossamer
