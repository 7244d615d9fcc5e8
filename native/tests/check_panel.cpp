// SPDX-License-Identifier: Apache-2.0
#include "gossamer/panel_layout.hpp"
#include "harness.hpp"

namespace gossamer::check {

void check_panel(Tally& tally) {
  const int64_t all_rows[] = {0, 1, 2, 15, 16, 17, 31, 33, 128, 129, 513};
  const int64_t all_columns[] = {0, 1, 7, 8, 9, 95, 96, 97, 191, 192, 193, 257, 300};
  const double densities[] = {0.0, 0.03, 0.1, 0.5, 1.0};
  std::mt19937 random(20240607);
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
  const int64_t tile_rows = 1 + random() % 70, group = 4 + random() % 40;
  for (const Isa isa : isas_to_check()) {
    const auto packed = pack_panel_weight(weight.view(), isa);
    check_unpack("panel", isa, weight, *packed, tally);
    check_packed("panel", isa, weight, *packed, call, seed, tally);
    const auto half = pack_panel_weight(weight.view(), isa, true);
    check_packed("panel bf16", isa, rounded_to_bf16(weight), *half, call, seed, tally);
    const auto shared = pack_shared_panel_weight(weight.view(), isa, tile_rows, 4, group);
    check_unpack("shared panel", isa, weight, *shared, tally);
    check_packed("shared panel", isa, weight, *shared, call, seed, tally);
  }
}

}  // namespace gossamer::check
