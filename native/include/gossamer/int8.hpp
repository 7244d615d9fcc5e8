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
// The unit of work is a quad: four weights of one row against four columns. Two forms of the
// quantised tile of tokens feed it, both with bytes [columns * width]:
//   panel   [column][token]: any four columns are interleaved on the fly, any mask
//   quad    [column / 4][token][4]: four neighbours, no shuffles; masks whose zeros come in fours
// Convolutions have a third one (int8_conv.hpp):
//   image   as panel, but columns start at any byte and their tokens, pixels, stand in natural order
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/linear.hpp"
#include "gossamer/panel.hpp"

namespace gossamer {

enum class Int8Form : int { panel = 0, quad = 1, image = 2 };

// Column offsets of a quad.
static constexpr int quad_offsets(Int8Form form) { return form == Int8Form::quad ? 1 : 4; }

// 127 * 127 * columns has to stay below 2^31.
constexpr int64_t kMaxInt8Columns = int64_t{1} << 17;
// A column offset is stored in bytes of a tile of 32 tokens; wider tiles multiply it. Those of images are
// just bytes.
constexpr int kInt8OffsetUnit = 32;
// Bytes of the tile of tokens that stay in an L1 of 32 KiB: wider tiles are for narrower blocks.
constexpr int64_t kMaxInt8Slab = 24576;
constexpr double kLowInt8Density = 0.15;
// Two quads may be summed in 16 bits if no column pair of theirs has more than this in positive or
// in negative weights: 127 * 258 < 2^15.
constexpr int kMaxPairSum = 258;

struct Int8Block {
  int64_t first_row;   // into row_ids, row_quads, row_pairs
  int64_t first_quad;  // into weights (times 4) and offsets (times 4 or 1)
  int64_t num_rows;
};

// Cut like the fp32 panel: column blocks whose slab stays in L1, row tiles whose accumulators stay
// in L2, rows of a block sorted by their count.
struct Int8View {
  int64_t rows, columns;
  int64_t block_columns, tile_rows;  // block_columns is a multiple of 8, but for images
  int64_t num_blocks, num_tiles;
  Int8Form form;
  int activation_bits;
  float activation_scale;  // 0: one per token
  const Int8Block* blocks;    // [num_tiles][num_blocks]
  const uint16_t* row_ids;    // row inside its tile; a spare entry at the end for the prefetch
  const uint16_t* row_quads;  // quads of that row inside the block
  const uint16_t* row_pairs;  // of which these pairs, in front, may be summed in 16 bits
  const int8_t* weights;      // [quads][4]
  const uint16_t* offsets;    // [quads][quad_offsets(form)]
  const float* row_scales;    // [rows]
  const int32_t* row_starts;  // [rows], -2^(bits - 1) * sum of the row's weights
};

static inline int64_t rows_of_tile(const Int8View& view, int64_t tile) {
  const int64_t left = view.rows - tile * view.tile_rows;
  return left < view.tile_rows ? left : view.tile_rows;
}

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
  // Columns of a block at most, above and below kLowInt8Density.
  int64_t block_columns, low_density_columns;
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
