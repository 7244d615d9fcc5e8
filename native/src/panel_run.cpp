// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "gossamer/fork.hpp"
#include "gossamer/panel_layout.hpp"

namespace gossamer {
namespace {

struct Free {
  void operator()(float* p) const { std::free(p); }
};

// Scratch lives as long as its thread: a new one per call would cost page faults every time.
float* thread_scratch(size_t floats) {
  thread_local std::unique_ptr<float, Free> buffer;
  thread_local size_t capacity = 0;
  if (floats > capacity) {
    const size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
    buffer.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    capacity = buffer ? floats : 0;
  }
  return buffer.get();
}

// A tile is worth padding when most of its lanes are used; otherwise a narrower one comes first.
int tile_width(const int* widths, int64_t block_columns, int64_t left) {
  int chosen = widths[0];
  for (const int* w = widths; *w; ++w) {
    if (*w * block_columns > kMaxSlabFloats) continue;  // the slab would not stay in L1
    chosen = *w;
    if (left * 8 > *w * 5) break;
  }
  return chosen;
}

std::vector<TokenTile> token_tiles(const PanelLayout& layout, const int* widths, int64_t tokens) {
  std::vector<TokenTile> tiles;
  for (int64_t first = 0; first < tokens;) {
    const int width = tile_width(widths, layout.block_columns, tokens - first);
    const int64_t num = tokens - first < width ? tokens - first : width;
    tiles.push_back({first, static_cast<int>(num), width});
    first += num;
  }
  return tiles;
}

}  // namespace

void run_panel(const PanelLayout& layout, const LinearCall& call, const KernelSet& kernels,
               int num_threads) {
  const PanelView view = layout.view();
  const std::vector<TokenTile> tiles = token_tiles(layout, kernels.widths, call.tokens);
  num_threads = usable_threads(num_threads);
  // Token tiles share nothing; row tiles of one token tile each pay for the transposition again.
  const int64_t num_token_tiles = static_cast<int64_t>(tiles.size());
  const int64_t splits =
      num_token_tiles % num_threads == 0 || num_token_tiles >= 4 * num_threads ? 1 : layout.num_tiles;
  const int64_t num_tasks = num_token_tiles * splits;
  std::atomic<bool> out_of_memory{false};
  const auto task = [&](int64_t i) {
    const TokenTile& tile = tiles[i / splits];
    const int64_t part = i % splits;
    const int64_t first = splits == 1 ? 0 : part, last = splits == 1 ? layout.num_tiles : part + 1;
    float* scratch = thread_scratch(panel_scratch_floats(view, tile.width));
    if (!scratch) {
      out_of_memory.store(true);
      return;
    }
    kernels.panel(view, call, tile, first, last, scratch);
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
