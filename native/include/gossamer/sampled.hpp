// SPDX-License-Identifier: Apache-2.0
// The sampled product dW[kept] = (dY^T X)[mask]: what kernels see and promise.
//
// The mirror image of the panel form: tiles of tokens of X and dY are turned feature-major, one row
// of dY is held in registers, and one kept weight is a dot product with a column of the X slab in L1.
// Lanes are added up four weights at a time. Positions come as a panel layout without values
// and with single rows (group_rows 1).
#pragma once
#include <cstdint>

#include "gossamer/panel.hpp"

namespace gossamer {

struct SampledCall {
  const float* x;  // [tokens][columns]
  int64_t x_stride;
  const float* grad;  // [tokens][rows]
  int64_t grad_stride, tokens;
};

// sums[slot] += the product of one token tile, for the rows of tiles first..last.
// `scratch` is 64-byte aligned, as large as sampled_scratch_floats says. Allocates and throws nothing.
using SampledKernel = void (*)(const PanelView&, const SampledCall&, TokenTile, int64_t first_tile,
                               int64_t last_tile, float* scratch, float* sums);

// The whole panel of X and a row tile of dY.
static inline size_t sampled_scratch_floats(const PanelView& view, int width) {
  return static_cast<size_t>(view.columns + view.tile_rows) * width;
}

struct SampledKernels {
  SampledKernel run;
  const int* widths;         // token tiles this set has, widest first, 0-terminated
  const PanelShape* shapes;  // by falling density
  double (*ceiling)(int64_t repeats);
};

namespace reference { extern const SampledKernels sampled_kernels; }
namespace avx2 { extern const SampledKernels sampled_kernels; }
namespace avx512 { extern const SampledKernels sampled_kernels; }

}  // namespace gossamer
