// SPDX-License-Identifier: Apache-2.0
// The specification of the window layout: plain loops over it.
#include "gossamer/int8_window.hpp"

#include <cmath>

#include "gossamer/encoder.hpp"
#include "reference/activation.hpp"

namespace gossamer::reference {
namespace {

void run(const WindowView& view, int64_t first_group, int64_t last_group, const WindowTokens& call, void*) {
  const int64_t blocks = view.blocks(), row0 = first_group * kWindowRows;
  for (int64_t tile = 0; tile < call.tiles; ++tile) {
    const int64_t first = call.first_of(tile), width = call.first_of(tile + 1) - first;
    const uint8_t* const bytes = call.bytes + first * view.num_windows() * kWindowBytes;
    for (int64_t t = 0; t < width; ++t)
      for (int64_t r = row0; r < last_group * kWindowRows && r < view.rows; ++r) {
        // Unsigned: sums may wrap on the way, as they do in the kernels; the last one is right.
        auto sum = static_cast<uint32_t>(view.row_starts[r]);
        const int64_t* const steps = view.first_steps + r / kWindowRows * blocks;
        for (int64_t s = steps[0]; s < steps[blocks]; ++s) {
          const uint8_t* const window = bytes + (view.windows[s] * width + t) * kWindowBytes;
          const uint8_t* const step = view.steps + s * 2 * kWindowRows * 4 + r % kWindowRows * 4;
          for (int i = 0; i < 4; ++i) sum += static_cast<uint32_t>(static_cast<int8_t>(step[i]) * window[step[kWindowRows * 4 + i]]);
        }
        const float v = std::fma(static_cast<float>(static_cast<int32_t>(sum)), call.scales[first + t] * view.row_scales[r],
                                 call.bias ? call.bias[r - row0] : 0.0f);
        call.y[(first + t) * call.y_stride + r - row0] = activate(v, call.activation);
      }
  }
}

template <class At>
void each_window(int64_t num_windows, int64_t columns, int64_t tokens, uint8_t* windows, const At& at) {
  const int64_t tiles = window_tiles(tokens);
  for (int64_t tile = 0; tile < tiles; ++tile)
    for (int64_t w = 0; w < num_windows; ++w)
      for (int64_t t = tokens * tile / tiles; t < tokens * (tile + 1) / tiles; ++t)
        for (int64_t i = 0; i < kWindowBytes; ++i, ++windows) {
          const int64_t column = w * kWindowShift + i;
          *windows = column < columns ? at(column, t) : 0;
        }
}

// The reference quantises panels to [column][token], the other sets to [column / 4][token][4].
void of_panel(const uint8_t* bytes, int64_t num_windows, int64_t columns, int64_t tokens, uint8_t* windows) {
  each_window(num_windows, columns, tokens, windows, [=](int64_t k, int64_t t) { return bytes[k * kTileTokens + t]; });
}
void of_quads(const uint8_t* bytes, int64_t num_windows, int64_t columns, int64_t tokens, uint8_t* windows) {
  each_window(num_windows, columns, tokens, windows,
              [=](int64_t k, int64_t t) { return bytes[(k / 4 * kTileTokens + t) * 4 + k % 4]; });
}

}  // namespace

const WindowKernel window_kernel = run;
const WindowsOfPanel windows_of_panel = of_panel, windows_of_quads = of_quads;

}  // namespace gossamer::reference
