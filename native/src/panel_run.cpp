// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "gossamer/fork.hpp"
#include "gossamer/panel_layout.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// A tile is worth padding when most of its lanes are used; otherwise a narrower one comes first.
int tile_width(const int* widths, int64_t slab_columns, int64_t left) {
  int chosen = 0;
  for (const int* w = widths; *w; ++w) {
    if (w[1] && *w * slab_columns > kMaxSlabFloats) continue;  // the slab would not stay in L1
    chosen = *w;
    if (left * 8 > *w * 5) break;
  }
  return chosen;
}

std::vector<TokenTile> token_tiles(const PanelLayout& layout, const int* widths, int64_t tokens) {
  std::vector<TokenTile> tiles;
  for (int64_t first = 0; first < tokens;) {
    const int width = tile_width(widths, layout.slab_columns, tokens - first);
    const int64_t num = tokens - first < width ? tokens - first : width;
    tiles.push_back({first, static_cast<int>(num), width});
    first += num;
  }
  return tiles;
}

struct PanelWeight final : PackedWeight {
  PanelLayout layout;
  const PanelKernels& kernels;

  PanelWeight(PanelLayout packed, const PanelKernels& chosen)
      : layout(std::move(packed)), kernels(chosen) {
    rows = layout.rows;
    columns = layout.columns;
    kept = layout.kept;
  }
  size_t bytes() const override { return layout.bytes(); }
  void run(const LinearCall& call, int num_threads) const override {
    run_panel(layout, call, kernels, num_threads);
  }
  bool is_lossless() const override { return layout.bf16_values.empty(); }
  void unpack(float* values, uint8_t* mask_bits) const override {
    unpack_panel(layout, values, mask_bits);
  }
};

}  // namespace

const PanelKernels& panel_kernels([[maybe_unused]] Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::panel_kernels, avx2::panel_kernels, avx512::panel_kernels);
#else
  return reference::panel_kernels;
#endif
}

std::unique_ptr<PackedWeight> pack_panel_weight(const KeptWeight& weight, Isa isa, bool bf16) {
  const PanelKernels& kernels = panel_kernels(isa);
  PanelLayout layout = pack_panel(weight, kernels.shapes);
  if (bf16) layout.round_values();
  return std::make_unique<PanelWeight>(std::move(layout), kernels);
}

std::unique_ptr<PackedWeight> pack_shared_panel_weight(const KeptWeight& weight, Isa isa,
                                                       int64_t tile_rows, int64_t used, int64_t group) {
  const PanelKernels& kernels = panel_kernels(isa);
  return std::make_unique<PanelWeight>(
      pack_shared_panel(weight, kernels.shapes, tile_rows, used, group), kernels);
}

void run_panel(const PanelLayout& layout, const LinearCall& call, const PanelKernels& kernels,
               int num_threads) {
  const PanelView view = layout.view();
  const std::vector<TokenTile> tiles = token_tiles(layout, kernels.widths, call.tokens);
  num_threads = usable_threads(num_threads);
  run_tiles(static_cast<int64_t>(tiles.size()), layout.num_tiles, num_threads,
            [&](int64_t tile, int64_t first, int64_t last) {
              void* scratch = thread_scratch(panel_scratch_floats(view, tiles[tile].width) * sizeof(float));
              if (scratch) kernels.run(view, call, tiles[tile], first, last, static_cast<float*>(scratch));
              return scratch != nullptr;
            });
}

}  // namespace gossamer
