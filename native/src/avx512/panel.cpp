// SPDX-License-Identifier: Apache-2.0
#include "simd/panel_kernel.hpp"
#include "simd/panel_vec512.hpp"

namespace gossamer::avx512 {
namespace {

template <int G, class Value>
void panel_width(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
                 int64_t last_tile, float* scratch) {
  switch (tile.width) {
    case 64: return panel_tile<PanelVec512, 1, 4, 2, Value>(view, call, tile, first_tile, last_tile, scratch);
    case 32: return panel_tile<PanelVec512, G, 2, 4 / G, Value>(view, call, tile, first_tile, last_tile, scratch);
    default: return panel_tile<PanelVec512, G, 1, 4, Value>(view, call, tile, first_tile, last_tile, scratch);
  }
}

void panel(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
           int64_t last_tile, float* scratch) {
  const auto whole = view.group_rows == 1 ? panel_width<1, float> : panel_width<2, float>;
  const auto half = view.group_rows == 1 ? panel_width<1, uint16_t> : panel_width<2, uint16_t>;
  (view.values ? whole : half)(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 16, 0};
// As measured with AVX2: Zen 3 and Zen 4 have the same L1 and the same bytes per cycle.
const PanelShape shapes[] = {{0.15, 96, 1}, {0.07, 192, 2}, {0, 256, 2}};

}  // namespace

const PanelKernels panel_kernels = {panel, widths, shapes, {ceiling_fma<PanelVec512>, ceiling_panel<PanelVec512, 4, 2>}};

}  // namespace gossamer::avx512
