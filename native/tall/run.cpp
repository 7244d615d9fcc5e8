// SPDX-License-Identifier: Apache-2.0
// Weights as panels, and tall products over threads.
#include <algorithm>
#include <vector>

#include "gossamer/fork.hpp"
#include "run_tasks.hpp"
#include "tall.hpp"

namespace gossamer {
namespace {

const TallKernels& kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::tall_kernels, avx2::tall_kernels, avx512::tall_kernels);
#else
  (void)isa;
  return reference::tall_kernels;
#endif
}

constexpr int64_t kPartsPerThread = 8;
constexpr int64_t kPartRows = 168;  // a multiple of all heights of tiles

// w as [inner, columns] panels one behind the other.
std::vector<float> panels_of(const float* w, const Panels& panels, int64_t inner, bool turned) {
  std::vector<float> packed(static_cast<size_t>(panels.vectors() * panels.lanes * inner), 0.0f);
  for (int64_t p = 0; p < panels.count; ++p) {
    const int64_t start = panels.start(p), columns = panels.columns(p);
    const int64_t filled = std::min(columns, panels.width - start);
    float* const to = packed.data() + start * inner;
    if (turned) {
      for (int64_t j = 0; j < filled; ++j)
        for (int64_t k = 0; k < inner; ++k) to[k * columns + j] = w[(start + j) * inner + k];
    } else {
      for (int64_t k = 0; k < inner; ++k)
        std::copy_n(w + k * panels.width + start, filled, to + k * columns);
    }
  }
  return packed;
}

}  // namespace

void tall_product(const float* x, const float* w, const float* bias, float* y, int64_t rows, int64_t inner,
                  int64_t width, bool turned, Isa isa, int num_threads) {
  if (rows == 0 || width == 0) return;
  const TallKernels& kernels = kernels_of(isa);
  const std::vector<float> packed = panels_of(w, kernels.panels(width), inner, turned);
  const TallProduct call = {x, packed.data(), bias, y, rows, inner, width};
  const int threads = usable_threads(num_threads);
  const int64_t blocks = (rows + kPartRows - 1) / kPartRows;
  const int64_t parts = threads > 1 ? std::min<int64_t>(blocks, threads * kPartsPerThread) : 1;
  run_tasks(parts, threads, [&](int64_t i) {
    kernels.product(call, blocks * i / parts * kPartRows, std::min(rows, blocks * (i + 1) / parts * kPartRows));
    return true;
  });
}

void tall_outer(const TallOuter& call, Isa isa, int num_threads) {
  if (call.height == 0) return;
  if (call.width == 0) {  // no column of c, whose first panel adds up the sums
    if (call.sums) std::fill_n(call.sums, call.height, 0.0f);
    for (int64_t i = 0; call.sums && i < call.rows * call.height; ++i) call.sums[i % call.height] += call.g[i];
    return;
  }
  const TallKernels& kernels = kernels_of(isa);
  const int threads = usable_threads(num_threads);
  const int64_t panels = kernels.panels(call.width).count;
  const int64_t tiles = (call.height + kernels.tile_height - 1) / kernels.tile_height;
  // Threads share columns, or rows of c where there are too few: each reads all of what it multiplies.
  const bool by_panels = panels >= threads || panels >= tiles;
  const int64_t parts = std::max<int64_t>(std::min<int64_t>(threads, by_panels ? panels : tiles), 1);
  run_tasks(parts, threads, [&](int64_t i) {
    if (by_panels)
      kernels.outer(call, panels * i / parts, panels * (i + 1) / parts, 0, call.height);
    else
      kernels.outer(call, 0, panels, tiles * i / parts * kernels.tile_height,
                    std::min(call.height, tiles * (i + 1) / parts * kernels.tile_height));
    return true;
  });
}

}  // namespace gossamer
