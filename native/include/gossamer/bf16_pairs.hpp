// SPDX-License-Identifier: Apache-2.0
// y = act(x W^T + bias) in bf16 arithmetic: what kernels see and promise.
//
// Weights are rounded to bf16 when packed, activations inside the call, both to nearest, ties to
// even; a value beyond the largest bf16 becomes an infinity. Products are exact in fp32 and added in
// fp32 from the bias on. The unit of work is a pair of weights of one row (dwords.hpp), from a tile
// of tokens [columns * width] in bf16: what vdpbf16ps takes.
//
// vdpbf16ps takes denormals for zeros and flushes those it would give, and every set adds in its own
// order: results of instruction sets agree within rounding, not in bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/dwords.hpp"

namespace gossamer {

using Bf16View = DwordView;

// Activations are rounded and turned 16 columns at a time.
static inline int64_t padded_bf16_columns(const Bf16View& view) { return (view.columns + 15) / 16 * 16; }

// Bytes of scratch one kernel call needs: the tile of tokens and the accumulators.
static inline size_t bf16_scratch_bytes(const Bf16View& view, int width) {
  return static_cast<size_t>(2 * padded_bf16_columns(view) + 4 * view.tile_rows) * width;
}

// y[tile of tokens, rows of tiles first..last). Allocates and throws nothing; `scratch` is 64-byte
// aligned.
using Bf16Kernel = void (*)(const Bf16View&, const LinearCall&, TokenTile, int64_t first_tile, int64_t last_tile,
                            void* scratch);

struct Bf16Kernels {
  Bf16Kernel run;
  const int* widths;  // token tiles this set has, widest first, 0-terminated
  DwordColumns block_columns;
  // The kernels' own mixes on rows that never end, on data in L1. Return the operations done.
  double (*ceiling_panel)(int64_t repeats);
  double (*ceiling_pair)(int64_t repeats);
};

namespace reference { extern const Bf16Kernels bf16_kernels; }
namespace avx2 { extern const Bf16Kernels bf16_kernels; }
namespace avx512 { extern const Bf16Kernels bf16_kernels; }  // without vdpbf16ps
namespace avx512bf16 { extern const Bf16Kernels bf16_kernels; }

}  // namespace gossamer
