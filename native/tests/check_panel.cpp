// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <numeric>

#include "gossamer/panel_layout.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

// Kernels in scratch of exactly the size they ask for: that of the driver only grows, and hides what
// is written behind it. Two rows side by side in tiles of odd numbers of rows need a spare one.
void check_scratch(Isa isa, int64_t tile_rows, int64_t num_tiles, std::mt19937& random, Tally& tally) {
  constexpr int64_t kColumns = 40, kBehind = 128;
  const PanelKernels& kernels = panel_kernels(isa);
  for (const double density : {0.0, 0.02}) {
    const Weight weight = random_weight(tile_rows * num_tiles, kColumns, density, random);
    const PanelLayout layout = pack_shared_panel(weight.view(), kernels.shapes, tile_rows, 4, 8);
    for (const int* width = kernels.widths; *width; ++width) {
      if (layout.group_rows > 1 && *width == kWidestTile) continue;
      const std::vector<float> x(*width * kColumns, 1.0f);
      std::vector<float> y(*width * weight.rows);
      const size_t size = panel_scratch_floats(layout.view(), *width);
      std::vector<float> memory(size + kBehind + 16);
      std::iota(memory.begin(), memory.end(), 0.0f);  // all different: a kernel may write what it read there
      const std::vector<float> before = memory;
      void* aligned = memory.data();
      size_t space = memory.size() * sizeof(float);
      auto* scratch = static_cast<float*>(std::align(64, (size + kBehind) * sizeof(float), aligned, space));
      kernels.run(layout.view(), {x.data(), *width, kColumns, y.data(), weight.rows, nullptr, Activation::none},
                  {0, *width, *width}, 0, num_tiles, scratch);
      const auto behind = memory.begin() + (scratch - memory.data()) + static_cast<int64_t>(size);
      const bool ok = std::equal(behind, memory.end(), before.begin() + (behind - memory.begin()));
      if (ok)
        tally.pass("panel scratch", isa, 0.0);
      else
        tally.fail("panel scratch", isa, "wrote behind it: tiles " + std::to_string(num_tiles) + " of rows " +
                                             std::to_string(tile_rows) + ", width " + std::to_string(*width));
    }
  }
}

}  // namespace

void check_panel(Tally& tally) {
  const int64_t all_rows[] = {0, 1, 2, 15, 16, 17, 31, 33, 128, 129, 513};
  const int64_t all_columns[] = {0, 1, 7, 8, 9, 95, 96, 97, 191, 192, 193, 257, 300};
  const double densities[] = {0.0, 0.03, 0.1, 0.5, 1.0};
  std::mt19937 random(20240607);
  for (const Isa isa : isas_to_check())
    for (const int64_t tile_rows : {1, 2, 7, 16, 1101})
      for (const int64_t num_tiles : {1, 2}) check_scratch(isa, tile_rows, num_tiles, random, tally);
  for (const int64_t rows : all_rows)
    for (const int64_t columns : all_columns)
      for (const double density : densities) {
        const Weight weight = random_weight(rows, columns, density, random);
        // Two random calls per weight: every call for every weight would take minutes.
        const Call calls[] = {random_call(random), random_call(random)};
        const unsigned seed = random();
        for (const Isa isa : isas_to_check()) {
          const auto packed = pack_panel_weight(weight.view(), isa);
          check_unpack("panel", isa, weight, *packed, tally);
          for (const Call& call : calls) check_packed("panel", isa, weight, *packed, call, seed, tally);
        }
      }
  for (int i = 0; i < 150; ++i) fuzz_panel(random, tally);
}

void fuzz_panel(std::mt19937& random, Tally& tally) {
  const Draw draw = random_draw(random);
  const Weight weight = random_weight(draw.rows, draw.columns, draw.density, random);
  const Call call = random_call(random);
  const unsigned seed = random();
  // Any mask may be cut as if its rows shared columns: that only changes the shape of the blocks.
  const int64_t tile_rows = 1 + random() % 70, used = 1 + random() % (1u << random() % 9);
  const int64_t group = used + random() % 200;
  for (const Isa isa : isas_to_check()) {
    const auto packed = pack_panel_weight(weight.view(), isa);
    check_unpack("panel", isa, weight, *packed, tally);
    check_packed("panel", isa, weight, *packed, call, seed, tally);
    const auto half = pack_panel_weight(weight.view(), isa, true);
    check_packed("panel bf16", isa, rounded_to_bf16(weight), *half, call, seed, tally);
    const auto shared = pack_shared_panel_weight(weight.view(), isa, tile_rows, used, group);
    check_unpack("shared panel", isa, weight, *shared, tally);
    check_packed("shared panel", isa, weight, *shared, call, seed, tally);
  }
}

}  // namespace gossamer::check
