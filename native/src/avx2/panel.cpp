// SPDX-License-Identifier: Apache-2.0
#include "simd/panel_kernel.hpp"
#include "simd/panel_vec256.hpp"

namespace gossamer::avx2 {
namespace {

template <int G, class Value>
void panel_width(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
                 int64_t last_tile, float* scratch) {
  constexpr int kSets = 2 / G;  // eight chains of FMAs, as many as the 16 registers allow
  switch (tile.width) {
    case 64: return panel_tile<PanelVec256, 1, 8, 1, Value>(view, call, tile, first_tile, last_tile, scratch);
    case 32: return panel_tile<PanelVec256, G, 4, kSets, Value>(view, call, tile, first_tile, last_tile, scratch);
    case 16: return panel_tile<PanelVec256, G, 2, 2 * kSets, Value>(view, call, tile, first_tile, last_tile, scratch);
    default: return panel_tile<PanelVec256, G, 1, 4, Value>(view, call, tile, first_tile, last_tile, scratch);
  }
}

void panel(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
           int64_t last_tile, float* scratch) {
  const auto whole = view.group_rows == 1 ? panel_width<1, float> : panel_width<2, float>;
  const auto half = view.group_rows == 1 ? panel_width<1, uint16_t> : panel_width<2, uint16_t>;
  (view.values ? whole : half)(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 16, 8, 0};
// Slabs of 24 KiB leave a quarter of L1 to the value stream and the accumulators. Measured at 50 /
// 90 / 95 %, speed-up over dense: 96 x 1 1.80 / 6.0 / 9.1, 192 x 2 1.73 / 6.6 / 10.7, 256 x 2 (32 KiB)
// 1.55 / 6.6 / 11.0; four rows side by side with 384 columns 1.53 / 6.3 / 10.2.
const PanelShape shapes[] = {{0.15, 96, 1}, {0.07, 192, 2}, {0, 256, 2}};

}  // namespace

const PanelKernels panel_kernels = {panel, widths, shapes, {ceiling_fma<PanelVec256>, ceiling_panel<PanelVec256, 8, 1>}};

}  // namespace gossamer::avx2
