// SPDX-License-Identifier: Apache-2.0
// Blocks of every height, and n:m:g masks, through the row-group kernel.
#include <algorithm>

#include "gossamer/row_groups_layout.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

Weight block_weight(int64_t rows, int64_t columns, int64_t block_rows, double density, std::mt19937& random) {
  std::uniform_real_distribution<double> uniform;
  std::vector<uint8_t> keeps(static_cast<size_t>((rows / block_rows + 1) * columns));
  for (uint8_t& keep : keeps) keep = uniform(random) < density;
  const auto mask = [&](int64_t r, int64_t k) { return keeps[r / block_rows * columns + k] != 0; };
  return masked_weight(rows, columns, mask, random);
}

// Each tile of C * repeats columns uses all choices equally often, in random order.
Weight nmg_weight(int64_t rows, int64_t columns, int n, int m, int64_t repeats, std::mt19937& random) {
  const std::vector<std::vector<uint8_t>> choices = gray_order(m, n);
  std::vector<uint8_t> keeps(static_cast<size_t>(rows * columns), 0);
  std::vector<size_t> order;
  for (size_t c = 0; c < choices.size(); ++c) order.insert(order.end(), repeats, c);
  for (int64_t r = 0; r < rows; r += m)
    for (int64_t k = 0; k < columns; k += static_cast<int64_t>(order.size())) {
      std::shuffle(order.begin(), order.end(), random);
      for (size_t j = 0; j < order.size(); ++j)
        for (const uint8_t row : choices[order[j]]) keeps[(r + row) * columns + k + j] = 1;
    }
  return masked_weight(rows, columns, [&](int64_t r, int64_t k) { return keeps[r * columns + k] != 0; }, random);
}

// One call of a weight on every instruction set.
template <class Pack>
void check_weight(const char* family, const Weight& weight, Pack pack, std::mt19937& random, Tally& tally) {
  const Call call = random_call(random);
  const unsigned seed = random();
  for (const Isa isa : isas_to_check()) {
    const auto packed = pack(weight.view(), isa);
    if (packed->kept != static_cast<int64_t>(weight.kept.size())) tally.fail(family, isa, "wrong count of weights");
    check_unpack(family, isa, weight, *packed, tally);
    check_packed(family, isa, weight, *packed, call, seed, tally);
  }
}

struct Nmg {
  int n, m;
  int64_t repeats;
};

void check_nmg(const Nmg& p, int64_t groups, int64_t tiles, std::mt19937& random, Tally& tally) {
  const int64_t tile_columns = static_cast<int64_t>(gray_order(p.m, p.n).size()) * p.repeats;
  const Weight weight = nmg_weight(groups * p.m, tiles * tile_columns, p.n, p.m, p.repeats, random);
  const auto pack = [&](const KeptWeight& kept, Isa isa) { return pack_nmg_groups(kept, p.n, p.m, p.repeats, isa); };
  check_weight("nmg", weight, pack, random, tally);
}

void check_blocks(const Draw& draw, int64_t block_rows, std::mt19937& random, Tally& tally) {
  const Weight weight = block_weight(draw.rows, draw.columns, block_rows, draw.density, random);
  const auto pack = [&](const KeptWeight& kept, Isa isa) { return pack_block_groups(kept, block_rows, isa); };
  check_weight("block", weight, pack, random, tally);
}

}  // namespace

void check_row_groups(Tally& tally) {
  std::mt19937 random(20240608);
  const int64_t all_block_rows[] = {2, 3, 4, 5, 7, 8, 16, 258};
  const int64_t all_rows[] = {0, 1, 2, 13, 64, 129, 261};
  const int64_t all_columns[] = {0, 1, 9, 257, 1030};
  const double densities[] = {0.0, 0.1, 0.6, 1.0};
  for (const int64_t block_rows : all_block_rows)
    for (const int64_t rows : all_rows)
      for (const int64_t columns : all_columns) {
        if (rows * columns > 70000) continue;  // the oracle takes its time
        check_blocks({rows, columns, densities[random() % 4]}, block_rows, random, tally);
      }
  const Nmg patterns[] = {{2, 2, 3}, {2, 4, 1}, {2, 4, 16}, {2, 4, 100}, {2, 8, 2}, {2, 22, 1},
                          {3, 4, 5}, {3, 6, 2}, {3, 12, 1}, {4, 4, 7},   {4, 8, 1}, {4, 9, 3}};
  for (const Nmg& pattern : patterns)
    for (const int64_t groups : {0, 1, 5, 40})
      for (const int64_t tiles : {0, 1, 3}) check_nmg(pattern, groups, tiles, random, tally);
}

void fuzz_row_groups(std::mt19937& random, Tally& tally) {
  if (random() % 2) {
    check_blocks(random_draw(random), 2 + random() % 20, random, tally);
  } else {
    const int n = 2 + random() % 3, m = n + random() % 4;
    check_nmg({n, m, 1 + static_cast<int64_t>(random() % 3)}, random() % 5, random() % 3, random, tally);
  }
}

}  // namespace gossamer::check
