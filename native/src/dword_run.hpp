// SPDX-License-Identifier: Apache-2.0
// Splits the tokens into tiles and the work over threads.
#pragma once
#include <omp.h>

#include <atomic>
#include <new>
#include <vector>

#include "gossamer/fork.hpp"
#include "gossamer/dwords.hpp"
#include "gossamer/scratch.hpp"

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
  // Token tiles share nothing; row tiles of one token tile each turn it again.
  const int64_t num_token_tiles = static_cast<int64_t>(tiles.size());
  const int64_t splits = num_token_tiles % num_threads == 0 || num_token_tiles >= 4 * num_threads ? 1 : view.num_tiles;
  const int64_t num_tasks = num_token_tiles * splits;
  std::atomic<bool> out_of_memory{false};
  const auto task = [&](int64_t i) {
    const TokenTile& tile = tiles[i / splits];
    const int64_t part = i % splits;
    void* scratch = thread_scratch(scratch_bytes(view, tile.width));
    if (scratch)
      kernel(view, call, tile, splits == 1 ? 0 : part, splits == 1 ? view.num_tiles : part + 1, scratch);
    else
      out_of_memory.store(true);
  };
  if (num_threads <= 1 || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
  } else {
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
  }
  if (out_of_memory.load()) throw std::bad_alloc();
}

}  // namespace gossamer
