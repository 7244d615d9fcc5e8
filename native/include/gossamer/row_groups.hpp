// SPDX-License-Identifier: Apache-2.0
// The row-group form of y = x W^T, fp32: rows stand in groups, and a kept column is kept by N of
// them. What kernels see and promise.
//
// Tokens are in lanes, as in the panel form (panel.hpp), but a loaded column serves N rows: N
// broadcasts and NV loads feed N * NV FMAs, so the FMA units are the bound instead of the load
// ports. Two patterns have this shape:
//   n:m:g       groups of m rows; the C(m, n) ways to keep N = n of them come in Gray order, so
//               that one row of accumulators is exchanged between two of them and N - 1 stay;
//   block:RxC   groups of N rows with one way only: all of them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/linear.hpp"
#include "gossamer/panel.hpp"

namespace gossamer {

// N. A column of one row alone is the panel kernel's business; four rows of three vectors fill the
// registers of AVX2. Measured, GFLOP/s of kept work at 50 / 90 / 95 %, 768 x 768: N = 4 94 / 79 / 68,
// output rows in lanes (strips of 16 rows, x broadcast) 83 / 69 / 63, the panel kernel 74 / 56 / 47.
constexpr int kMinGroupKept = 2, kMaxGroupKept = 4;

// The groups of one row tile inside one slab of columns.
struct GroupBlock {
  int64_t first_group;   // into first_rows; times num_choices into counts
  int64_t first_column;  // into offsets; times num_kept into values
};

constexpr int kColumnsAhead = 4;  // how far ahead columns are prefetched

// Plain pointers: see PanelView for why.
//
// Groups of a block are sorted by their number of columns: equal trip counts in a row are what the
// branch predictor needs. Groups may overlap: the last one of a block of rows that N does not
// divide starts early, with zeros for the rows that the one before has done.
struct RowGroupsView {
  int64_t rows, columns;
  int64_t num_kept, num_choices;   // N, and ways to choose them in a group
  const uint8_t* choices;          // [num_choices][num_kept] rows of a group, neighbours differ in one entry
  const uint8_t* changed;          // [num_choices] which entry differs from the choice before
  int64_t slab_columns, num_slabs, num_tiles, max_tile_rows;
  bool has_own_rows;               // every row is in one group only and has one choice: it is started once
  const int64_t* tile_rows;        // [num_tiles + 1] first row of each tile
  const int64_t* tile_groups;      // [num_tiles] groups of each tile
  const GroupBlock* blocks;        // [num_tiles][num_slabs]
  const uint16_t* first_rows;      // of each group, inside its tile; one spare entry for the prefetch
  const uint16_t* counts;          // [group][num_choices] columns of each choice
  const uint16_t* offsets;         // column inside the slab * kOffsetUnit; kColumnsAhead spare ones
  const float* values;             // [column][num_kept]
};

// Where the accumulators of all rows fit into L2, slab after slab is turned and used up, as in the panel
// kernel (goes_by_slabs). With one slab there is nothing to gain.
static inline bool row_groups_go_by_slabs(const RowGroupsView& view, int width) {
  return view.num_slabs > 1 && view.rows * width <= kMaxAccumulatorFloats;
}

// Rows of accumulators, with spare ones for a group that ends behind its tile.
static inline int64_t row_groups_accumulators(const RowGroupsView& view, int width) {
  return (row_groups_go_by_slabs(view, width) ? view.rows : view.max_tile_rows) + kMaxGroupKept;
}

// Floats of scratch one kernel call needs: the panel or a slab of it, accumulators and their bias.
static inline size_t row_groups_scratch_floats(const RowGroupsView& view, int width) {
  const int64_t columns = row_groups_go_by_slabs(view, width) ? view.slab_columns : view.columns;
  return static_cast<size_t>(columns * width + row_groups_accumulators(view, width) * (width + 1));
}

// y[tile of tokens, rows of tiles first..last) = act(x W^T + bias). Allocates and throws nothing.
// `scratch` is 64-byte aligned.
using RowGroupsKernel = void (*)(const RowGroupsView&, const LinearCall&, TokenTile, int64_t first_tile,
                                 int64_t last_tile, float* scratch);

struct RowGroupsKernels {
  RowGroupsKernel run;
  int lanes;               // tokens of one vector
  const int* max_vectors;  // of a token tile, by num_kept - kMinGroupKept
  double (*ceiling)(int64_t repeats);
};

namespace reference { extern const RowGroupsKernels row_groups_kernels; }
namespace avx2 { extern const RowGroupsKernels row_groups_kernels; }
namespace avx512 { extern const RowGroupsKernels row_groups_kernels; }

}  // namespace gossamer
