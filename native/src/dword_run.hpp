// SPDX-License-Identifier: Apache-2.0
// Splits the tokens into tiles and the work over threads.
#pragma once

#include <vector>

#include "gossamer/fork.hpp"
#include "gossamer/dwords.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {

// A tile is worth padding when most of its lanes are used; otherwise a narrower one comes first.
inline int tile_width(const int* widths, int64_t column_bytes, int64_t left) {
  while (widths[1] && (left * 8 <= *widths * 5 || *widths * column_bytes > kMaxDwordSlab)) ++widths;
  return *widths;
}

// Runs `kernel(view, call, tile, first_tile, last_tile, scratch)` on everything. `item_bytes` are
// those of an activation in the tile, `scratch_bytes(view, width)` what the kernel needs.
template <class View, class Kernel, class ScratchBytes>
void run_dwords(const View& view, const LinearCall& call, const int* widths, int item_bytes, int num_threads,
                Kernel kernel, ScratchBytes scratch_bytes) {
  std::vector<TokenTile> tiles;
  for (int64_t first = 0; first < call.tokens;) {
    const int width = tile_width(widths, view.block_columns * item_bytes, call.tokens - first);
    const int64_t num = call.tokens - first < width ? call.tokens - first : width;
    tiles.push_back({first, static_cast<int>(num), width});
    first += num;
  }
  num_threads = usable_threads(num_threads);
  run_tiles(static_cast<int64_t>(tiles.size()), view.num_tiles, num_threads,
            [&](int64_t tile, int64_t first, int64_t last) {
              void* scratch = thread_scratch(scratch_bytes(view, tiles[tile].width));
              if (scratch) kernel(view, call, tiles[tile], first, last, scratch);
              return scratch != nullptr;
            });
}

}  // namespace gossamer
