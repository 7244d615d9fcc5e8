// SPDX-License-Identifier: Apache-2.0
// The panel form of y = x W^T for an unstructured fp32 weight: what kernels see and promise.
//
// A tile of tokens is turned feature-major, panel[k][token], so that one kept weight costs one
// broadcast and a few FMAs with memory operands: no gathers, whatever the pattern. Columns are cut
// into blocks whose slab of the panel stays in L1; rows are cut into tiles whose accumulators stay
// in L2. Inside a (row tile, column block) rows are sorted by their count, because equal trip
// counts in a row are what the branch predictor needs.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/linear.hpp"

namespace gossamer {

// A column offset is stored as column * kOffsetUnit bytes: the row of an 8-token panel.
// Wider panels multiply it by width / 8, which x86 addressing does for free (2, 4, 8).
constexpr int kOffsetUnit = 32;
constexpr int kMaxSlabFloats = 8192;  // of an L1 of 32 KiB
constexpr int kWidestTile = 64;       // tokens

struct PanelBlock {
  int64_t first_row;    // into row_ids, row_counts
  int64_t first_value;  // into values, offsets
  int64_t num_rows;     // a multiple of group_rows
};

// What a kernel sees: plain pointers. The files built for one instruction set must not instantiate
// library code (std::vector and friends): the linker could pick their copy for every CPU.
//
// Rows of a block stand in groups of 1 or 2 that are walked together; the values and offsets of
// a group are interleaved, [kept][group_rows], and shorter rows are filled up with zeros to the
// count of the first, longest one. A group that lacks rows names spare ones behind its tile, which have
// accumulators of their own. Tiles of kWidestTile tokens take rows one by one: group_rows is 1 where they
// may come.
struct PanelView {
  int64_t rows, columns;
  int64_t block_columns, tile_rows;
  int64_t num_blocks, num_tiles, group_rows;
  const PanelBlock* blocks;    // [num_tiles][num_blocks]
  const uint16_t* row_ids;     // row inside its tile; spare entries at the end for the prefetch
  const uint16_t* row_counts;  // kept weights of that row inside the block
  const float* values;  // or, where this is null, bf16_values
  const uint16_t* offsets;
  const uint16_t* bf16_values;
};

template <class Value>
const Value* values_of(const PanelView& view);
template <>
inline const float* values_of<float>(const PanelView& view) {
  return view.values;
}
template <>
inline const uint16_t* values_of<uint16_t>(const PanelView& view) {
  return view.bf16_values;
}

static inline int64_t rows_of_tile(const PanelView& view, int64_t tile) {
  const int64_t left = view.rows - tile * view.tile_rows;
  return left < view.tile_rows ? left : view.tile_rows;
}

// Rows of accumulators of a row tile: its own and those that its last group may lack.
static inline int64_t accumulator_rows(const PanelView& view) {
  return (view.tile_rows + view.group_rows - 1) / view.group_rows * view.group_rows;
}

// One token tile: `num_tokens` of `width` lanes are real, the rest is computed and dropped.
struct TokenTile {
  int64_t first;
  int num_tokens, width;
};

// Where the accumulators of all rows fit into L2, slab after slab is turned and used up: the panel
// as a whole never exists. Else it is turned once, and row tiles go over it one by one.
constexpr int64_t kMaxAccumulatorFloats = 64 * 1024;
static inline bool goes_by_slabs(const PanelView& view, int width) {
  return view.num_tiles * accumulator_rows(view) * width <= kMaxAccumulatorFloats;
}

// Floats of scratch one kernel call needs: panel or slab, accumulators, their bias.
static inline size_t panel_scratch_floats(const PanelView& view, int width) {
  const bool slabs = goes_by_slabs(view, width);
  const int64_t columns = slabs ? view.block_columns : view.columns;
  const int64_t rows = (slabs ? view.num_tiles : 1) * accumulator_rows(view);
  return static_cast<size_t>(columns + rows) * width + rows;
}

// y[tile of tokens, rows of tiles first..last) = act(x W^T + bias). Allocates and throws nothing.
// `scratch` is 64-byte aligned.
using PanelKernel = void (*)(const PanelView&, const LinearCall&, TokenTile, int64_t first_tile,
                             int64_t last_tile, float* scratch);

// Two instruction mixes that bound the kernel: `fma` from registers, `panel` = one broadcast and
// FMAs with memory operands from a slab in L1. Return the floating point operations done.
struct Ceilings {
  double (*fma)(int64_t repeats);
  double (*panel)(int64_t repeats);
};

// How a weight of a density is cut: columns of a block and rows side by side. Wide tiles (few
// columns) cost the fewest instructions per kept weight; at low density rows of a block get short,
// and narrower tiles reload the accumulators less often.
struct PanelShape {
  double min_density;
  int64_t block_columns, group_rows;
};

struct PanelKernels {
  PanelKernel run;
  const int* widths;         // token tiles this set has, widest first, 0-terminated
  const PanelShape* shapes;  // by falling density; the last one takes everything
  Ceilings ceilings;
};

namespace reference { extern const PanelKernels panel_kernels; }
namespace avx2 { extern const PanelKernels panel_kernels; }
namespace avx512 { extern const PanelKernels panel_kernels; }

}  // namespace gossamer
