// SPDX-License-Identifier: Apache-2.0
#include "gossamer/fork.hpp"
#include "gossamer/row_groups_layout.hpp"
#include "gossamer/scratch.hpp"
#include "row_groups_weight.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// Tiles of nearly equal width: 16 vectors in tiles of at most 3 go as 3 3 3 3 2 2, because one
// alone has too few chains of FMAs.
std::vector<TokenTile> token_tiles(int64_t tokens, int lanes, int max_vectors) {
  const int64_t num_vectors = (tokens + lanes - 1) / lanes;
  const int64_t num_tiles = (num_vectors + max_vectors - 1) / max_vectors;
  std::vector<TokenTile> tiles;
  int64_t first = 0;
  for (int64_t i = 0; i < num_tiles; ++i) {
    const int64_t width = lanes * (num_vectors / num_tiles + (i < num_vectors % num_tiles));
    const int64_t num = tokens - first < width ? tokens - first : width;
    tiles.push_back({first, static_cast<int>(num), static_cast<int>(width)});
    first += num;
  }
  return tiles;
}

}  // namespace

const RowGroupsKernels& row_groups_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::row_groups_kernels, avx2::row_groups_kernels, avx512::row_groups_kernels);
#else
  (void)isa;
  return reference::row_groups_kernels;
#endif
}

RowGroupsView RowGroupsWeight::view() const {
  RowGroupsView view = {};
  view.rows = rows;
  view.columns = columns;
  view.num_kept = num_kept;
  view.num_choices = static_cast<int64_t>(changed.size());
  view.choices = choices.data();
  view.changed = changed.data();
  view.slab_columns = slab_columns;
  view.num_slabs = num_slabs;
  view.num_tiles = static_cast<int64_t>(tile_groups.size());
  view.max_tile_rows = max_tile_rows;
  view.has_own_rows = has_own_rows;
  view.tile_rows = tile_rows.data();
  view.tile_groups = tile_groups.data();
  view.blocks = blocks.data();
  view.first_rows = first_rows.data();
  view.counts = counts.data();
  view.offsets = offsets.data();
  view.values = values.data();
  return view;
}

size_t RowGroupsWeight::bytes() const {
  return values.size() * sizeof(float) + choices.size() + changed.size() + blocks.size() * sizeof(GroupBlock) +
         (tile_rows.size() + tile_groups.size()) * sizeof(int64_t) +
         (first_rows.size() + counts.size() + offsets.size()) * sizeof(uint16_t);
}

void RowGroupsWeight::run(const LinearCall& call, int num_threads) const {
  const RowGroupsView seen = view();
  const int max_vectors = kernels.max_vectors[num_kept - kMinGroupKept];
  const std::vector<TokenTile> tiles = token_tiles(call.tokens, kernels.lanes, max_vectors);
  num_threads = usable_threads(num_threads);
  run_tiles(static_cast<int64_t>(tiles.size()), seen.num_tiles, num_threads,
            [&](int64_t tile, int64_t first, int64_t last) {
              void* scratch = thread_scratch(row_groups_scratch_floats(seen, tiles[tile].width) * sizeof(float));
              if (scratch) kernels.run(seen, call, tiles[tile], first, last, static_cast<float*>(scratch));
              return scratch != nullptr;
            });
}

}  // namespace gossamer
