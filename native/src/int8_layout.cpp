// SPDX-License-Identifier: Apache-2.0
#include "gossamer/int8_layout.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "gossamer/panel_layout.hpp"

namespace gossamer {
namespace {

struct Quad {
  std::array<int8_t, 4> weights{};
  std::array<uint16_t, 4> columns{};  // inside the block; the quad form uses the first

  // The larger of the positive and the negative sums of each column pair.
  int load() const { return std::max(pair_load(0), pair_load(2)); }
  bool fits(const Quad& other) const {
    for (const int i : {0, 2})
      for (const int sign : {1, -1})
        if (one_sided(i, sign) + other.one_sided(i, sign) > kMaxPairSum) return false;
    return true;
  }

 private:
  int one_sided(int i, int sign) const {
    return std::max(sign * weights[i], 0) + std::max(sign * weights[i + 1], 0);
  }
  int pair_load(int i) const { return std::max(one_sided(i, 1), one_sided(i, -1)); }
};

// Partners first, quads that found none behind them. The heaviest quad takes the heaviest one that
// still fits, so that light ones are left for the rest.
int64_t pair_up(std::vector<Quad>& quads) {
  std::stable_sort(quads.begin(), quads.end(), [](const Quad& a, const Quad& b) { return a.load() > b.load(); });
  std::vector<Quad> pairs, alone;
  std::vector<bool> taken(quads.size(), false);
  for (size_t i = 0; i < quads.size(); ++i) {
    if (taken[i]) continue;
    size_t j = i + 1;
    while (j < quads.size() && (taken[j] || !quads[i].fits(quads[j]))) ++j;
    if (j == quads.size()) {
      alone.push_back(quads[i]);
      continue;
    }
    taken[j] = true;
    pairs.insert(pairs.end(), {quads[i], quads[j]});
  }
  const int64_t num_pairs = static_cast<int64_t>(pairs.size() / 2);
  quads = std::move(pairs);
  quads.insert(quads.end(), alone.begin(), alone.end());
  return num_pairs;
}

// One row of a column block: its kept columns and weights, four at a time.
struct Row {
  std::vector<Quad> quads;
  int64_t num_pairs = 0;
};

// Pairs are the quad form's: the others wait for their shuffles, and gained 2 % from them.
PairRule pair_rule(const Int8Layout& layout, const Int8Kernels& kernels) {
  const bool overflows = kernels.pairs == PairRule::bounded && layout.activation_bits != 7;
  return layout.form != Int8Form::quad || overflows ? PairRule::none : kernels.pairs;
}

void add_kept(std::vector<Quad>& quads, Int8Form form, int64_t index, int64_t column, int8_t weight) {
  const bool any_four = form != Int8Form::quad;
  const auto slot = static_cast<size_t>(any_four ? index % 4 : column % 4);
  const auto first = static_cast<uint16_t>(any_four ? column : column / 4 * 4);
  const bool opens = any_four ? slot == 0 : quads.empty() || quads.back().columns[0] != first;
  if (opens) {
    quads.emplace_back();
    quads.back().columns.fill(first);  // unused slots repeat a column and weigh nothing
  }
  quads.back().columns[slot] = any_four ? first : quads.back().columns[slot];
  quads.back().weights[slot] = weight;
}

Int8Cut token_cut(const KeptWeight& weight, const Int8Kernels& kernels) {
  const double kept = static_cast<double>(row_starts(weight)[weight.rows]);
  const bool is_low = kept < kLowInt8Density * double(weight.rows) * double(weight.columns);
  const int64_t most = is_low ? kernels.low_density_columns : kernels.block_columns;
  const int64_t num_blocks = std::max<int64_t>((weight.columns + most - 1) / most, 1);
  const int64_t even = (weight.columns + num_blocks - 1) / num_blocks;
  Int8Cut cut{std::max<int64_t>((even + 7) / 8 * 8, 8), {}};
  for (int64_t k = 0; k < cut.block_columns; ++k) cut.offsets.push_back(static_cast<uint16_t>(k * kInt8OffsetUnit));
  return cut;
}

}  // namespace

Int8Layout pack_int8(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& kernels) {
  return pack_int8(weight, options, kernels, token_cut(weight, kernels));
}

Int8Layout pack_int8(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& kernels,
                     const Int8Cut& cut) {
  const int64_t rows = weight.rows, columns = weight.columns;
  Int8Layout layout;
  layout.rows = rows;
  layout.columns = columns;
  layout.form = options.form;
  layout.activation_bits = options.activation_bits ? options.activation_bits : kernels.activation_bits;
  layout.activation_scale = options.activation_scale;
  layout.tile_rows = tile_rows_for(rows);
  layout.num_tiles = (rows + layout.tile_rows - 1) / layout.tile_rows;
  const PairRule rule = pair_rule(layout, kernels);

  layout.block_columns = cut.block_columns;
  layout.num_blocks = std::max<int64_t>((columns + cut.block_columns - 1) / cut.block_columns, 1);

  std::vector<int64_t> cursor = row_starts(weight);
  layout.kept = cursor[rows];
  layout.row_scales.assign(rows, 1.0f);
  layout.row_starts.assign(rows, 0);
  std::vector<double> inverse(rows, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    float top = 0.0f;
    for (int64_t i = cursor[r]; i < cursor[r + 1]; ++i) top = std::max(top, std::fabs(weight.values[i]));
    if (top > 0.0f) {
      layout.row_scales[r] = static_cast<float>(double(top) / 127);
      inverse[r] = 127 / double(top);
    }
  }

  std::vector<Row> tile_block(layout.tile_rows);
  std::vector<int64_t> order;
  for (int64_t tile = 0; tile < layout.num_tiles; ++tile) {
    const int64_t first = tile * layout.tile_rows, num = std::min(layout.tile_rows, rows - first);
    for (int64_t block = 0; block < layout.num_blocks; ++block) {
      const int64_t k0 = block * layout.block_columns, k1 = std::min(k0 + layout.block_columns, columns);
      for (int64_t i = 0; i < num; ++i) {
        Row& row = tile_block[i];
        const int64_t r = first + i;
        row.quads.clear();
        int64_t index = 0;
        for (int64_t k = k0; k < k1; ++k) {
          if (!weight.keeps(r, k)) continue;
          const auto q = static_cast<int8_t>(std::lrint(weight.values[cursor[r]++] * inverse[r]));
          layout.row_starts[r] -= q * activation_offset(layout.activation_bits);
          add_kept(row.quads, layout.form, index++, k - k0, q);
        }
        row.num_pairs = rule == PairRule::any       ? static_cast<int64_t>(row.quads.size() / 2)
                        : rule == PairRule::bounded ? pair_up(row.quads)
                                                    : 0;
      }
      // Equal trip counts in a row are what the branch predictor needs.
      order.resize(num);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const Row &x = tile_block[a], &y = tile_block[b];
        return x.quads.size() != y.quads.size() ? x.quads.size() > y.quads.size() : x.num_pairs > y.num_pairs;
      });
      layout.blocks.push_back({static_cast<int64_t>(layout.row_ids.size()),
                               static_cast<int64_t>(layout.weights.size() / 4), num});
      for (const int64_t id : order) {
        const Row& row = tile_block[id];
        layout.row_ids.push_back(static_cast<uint16_t>(id));
        layout.row_quads.push_back(static_cast<uint16_t>(row.quads.size()));
        layout.row_pairs.push_back(static_cast<uint16_t>(row.num_pairs));
        for (const Quad& quad : row.quads) {
          layout.weights.insert(layout.weights.end(), quad.weights.begin(), quad.weights.end());
          for (int i = 0; i < quad_offsets(layout.form); ++i) layout.offsets.push_back(cut.offsets[quad.columns[i]]);
        }
      }
    }
  }
  layout.row_ids.push_back(0);
  return layout;
}

}  // namespace gossamer
