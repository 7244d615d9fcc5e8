// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <atomic>
#include <new>

#include "gossamer/fork.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/scratch.hpp"

namespace gossamer {
namespace {

// A tile is worth padding when most of its lanes are used; otherwise a narrower one comes first.
int tile_width(const int* widths, int64_t block_columns, int64_t left) {
  while (widths[1] && (left * 8 <= *widths * 5 || *widths * block_columns > kMaxInt8Slab)) ++widths;
  return *widths;
}

std::vector<TokenTile> token_tiles(const int* widths, int64_t block_columns, int64_t tokens) {
  std::vector<TokenTile> tiles;
  for (int64_t first = 0; first < tokens;) {
    const int width = tile_width(widths, block_columns, tokens - first);
    const int64_t num = tokens - first < width ? tokens - first : width;
    tiles.push_back({first, static_cast<int>(num), width});
    first += num;
  }
  return tiles;
}

}  // namespace

const Int8Kernels& int8_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  __builtin_cpu_init();
  const bool has_vnni = __builtin_cpu_supports("avx512vnni");
  return pick(isa, reference::int8_kernels, avx2::int8_kernels,
              has_vnni ? avx512vnni::int8_kernels : avx512::int8_kernels);
#else
  (void)isa;
  return reference::int8_kernels;
#endif
}

Int8Weight::Int8Weight(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& chosen)
    : layout(pack_int8(weight, options, chosen)), kernels(chosen) {
  rows = layout.rows;
  columns = layout.columns;
  kept = layout.kept;
}

void Int8Weight::run(const LinearCall& call, int num_threads) const {
  const Int8View view = layout.view();
  const std::vector<TokenTile> tiles = token_tiles(kernels.widths, view.block_columns, call.tokens);
  num_threads = usable_threads(num_threads);
  // Token tiles share nothing; row tiles of one token tile each quantise it again.
  const int64_t num_token_tiles = static_cast<int64_t>(tiles.size());
  const int64_t splits =
      num_token_tiles % num_threads == 0 || num_token_tiles >= 4 * num_threads ? 1 : layout.num_tiles;
  const int64_t num_tasks = num_token_tiles * splits;
  std::atomic<bool> out_of_memory{false};
  const auto task = [&](int64_t i) {
    const TokenTile& tile = tiles[i / splits];
    const int64_t part = i % splits;
    void* scratch = thread_scratch(int8_scratch_bytes(view, tile.width));
    if (scratch)
      kernels.run(view, call, tile, splits == 1 ? 0 : part, splits == 1 ? layout.num_tiles : part + 1, scratch);
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
