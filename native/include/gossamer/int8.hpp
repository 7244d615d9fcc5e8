// SPDX-License-Identifier: Apache-2.0
// y = act(s_row * s_token * (q_w q_x) + bias) in int8 arithmetic: what kernels see and promise.
//
// Weights are int8 in [-127, 127] with one scale per output row. Activations are quantised inside
// the call to q in [-limit, limit], limit = 2^(bits - 1) - 1, with one scale per token, or with one
// scale given when the weight was packed. They are stored unsigned, q + 2^(bits - 1), because the
// x86 instructions multiply u8 by s8; the accumulator of a row starts at what that adds. Sums are
// exact 32-bit integers, so the results are the same bits in every instruction set, whatever the
// tiles and threads, up to the activation function.
//
//   7 bits   vpmaddubsw adds two products in 16 bits: 2 * 127 * 127 < 2^15 cannot saturate
//   8 bits   vpdpbusd (VNNI) adds four in 32 bits; without it 8 bits cost two multiplications more
//
// A token that holds a NaN or an infinity gives NaN in its whole output row. A token whose values
// are all below 2^-120 counts as zero: its output is act(bias).
//
// The unit of work is a quad: four weights of one row against four columns (dwords.hpp), from a
// tile of tokens in bytes [columns * width].
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/dwords.hpp"

namespace gossamer {

// 127 * 127 * columns has to stay below 2^31.
constexpr int64_t kMaxInt8Columns = int64_t{1} << 17;
// Two quads may be summed in 16 bits if no column pair of theirs has more than this in positive or
// in negative weights: 127 * 258 < 2^15.
constexpr int kMaxPairSum = 258;

struct Int8View : DwordView {
  int activation_bits;
  float activation_scale;     // 0: one per token
  const float* row_scales;    // [rows]
  const int32_t* row_starts;  // [rows], -2^(bits - 1) * sum of the row's weights
};

static inline int64_t padded_columns(const Int8View& view) { return (view.columns + 7) / 8 * 8; }

// The largest activation and what makes it unsigned.
static inline int activation_limit(int bits) { return (1 << (bits - 1)) - 1; }
static inline int activation_offset(int bits) { return 1 << (bits - 1); }

struct TokenScale {
  float scale, inverse;
};

// `largest` holds the bits of the largest |x| of the token: as integers, NaN and infinity are above
// every number.
static inline TokenScale token_scale(uint32_t largest, const Int8View& view) {
  const float limit = static_cast<float>(activation_limit(view.activation_bits));
  if (largest >= 0x7f800000u) return {__builtin_nanf(""), 0.0f};
  if (view.activation_scale != 0.0f) return {view.activation_scale, 1.0f / view.activation_scale};
  float top;
  __builtin_memcpy(&top, &largest, sizeof top);
  if (top < 0x1p-120f) return {1.0f, 0.0f};
  return {top / limit, limit / top};
}

// Bytes of scratch one kernel call needs: the tile of tokens twice (before and after its
// transposition), accumulators, two numbers per token.
static inline size_t int8_scratch_bytes(const Int8View& view, int width) {
  return static_cast<size_t>(2 * padded_columns(view) + view.tile_rows * 4 + 8) * width;
}

// y[tile of tokens, rows of tiles first..last). Allocates and throws nothing; `scratch` is 64-byte
// aligned.
using Int8Kernel = void (*)(const Int8View&, const LinearCall&, TokenTile, int64_t first_tile,
                            int64_t last_tile, void* scratch);

// Which pairs of quads a kernel may be given.
enum class PairRule { none, any, bounded };  // bounded: by kMaxPairSum, with 7 bits only

struct Int8Kernels {
  Int8Kernel run;
  const int* widths;  // token tiles this set has, widest first, 0-terminated
  DwordColumns block_columns;
  int activation_bits;  // unless the caller wants others
  PairRule pairs;
  // The kernels' own mixes on rows that never end, on data in L1. Return the operations done.
  double (*ceiling_panel)(int64_t repeats);
  double (*ceiling_quad)(int64_t repeats);
};

namespace reference { extern const Int8Kernels int8_kernels; }
namespace avx2 { extern const Int8Kernels int8_kernels; }
namespace avx512 { extern const Int8Kernels int8_kernels; }      // without VNNI
namespace avx512vnni { extern const Int8Kernels int8_kernels; }

}  // namespace gossamer
