// SPDX-License-Identifier: Apache-2.0
#include "gossamer/int8_layout.hpp"

#include <algorithm>

#include "dword_fill.hpp"
#include "int8_codes.hpp"

namespace gossamer {
namespace {

constexpr int kLanes = 4;

// Positive or negative weights of the column pair i, i + 1 of a quad.
int one_sided(const Dword& quad, int i, int sign) {
  const auto part = [&](int lane) { return std::max(sign * static_cast<int8_t>(quad.weights >> (8 * lane)), 0); };
  return part(i) + part(i + 1);
}

// The larger of the positive and the negative sums of each column pair.
int load(const Dword& quad) {
  int most = 0;
  for (const int i : {0, 2})
    for (const int sign : {1, -1}) most = std::max(most, one_sided(quad, i, sign));
  return most;
}

bool fit(const Dword& a, const Dword& b) {
  for (const int i : {0, 2})
    for (const int sign : {1, -1})
      if (one_sided(a, i, sign) + one_sided(b, i, sign) > kMaxPairSum) return false;
  return true;
}

// Partners first, quads that found none behind them. The heaviest quad takes the heaviest one that
// still fits, so that light ones are left for the rest.
int64_t pair_up(std::vector<Dword>& quads) {
  std::stable_sort(quads.begin(), quads.end(), [](const Dword& a, const Dword& b) { return load(a) > load(b); });
  std::vector<Dword> pairs, alone;
  std::vector<bool> taken(quads.size(), false);
  for (size_t i = 0; i < quads.size(); ++i) {
    if (taken[i]) continue;
    size_t j = i + 1;
    while (j < quads.size() && (taken[j] || !fit(quads[i], quads[j]))) ++j;
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

// Pairs are the quad form's: the others wait for their shuffles, and gained 2 % from them.
PairRule pair_rule(const Int8Layout& layout, const Int8Kernels& kernels) {
  const bool overflows = kernels.pairs == PairRule::bounded && layout.activation_bits != 7;
  return layout.form != DwordForm::neighbours || overflows ? PairRule::none : kernels.pairs;
}

}  // namespace

Int8Layout pack_int8(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& kernels) {
  return pack_int8(weight, options, kernels, token_cut(weight, kernels.block_columns));
}

Int8Layout pack_int8(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& kernels,
                     const DwordCut& cut) {
  Int8Layout layout;
  const std::vector<int64_t> row_start = row_starts(weight);
  cut_dwords(layout, weight, row_start[weight.rows], options.form, cut);
  layout.activation_bits = options.activation_bits ? options.activation_bits : kernels.activation_bits;
  layout.activation_scale = options.activation_scale;
  layout.row_starts.assign(weight.rows, 0);
  std::vector<RowCodes> codes;
  for (int64_t r = 0; r < weight.rows; ++r) {
    codes.emplace_back(weight.values + row_start[r], row_start[r + 1] - row_start[r]);
    layout.row_scales.push_back(codes.back().scale);
  }
  const auto quantise = [&](int64_t row, float value) -> uint32_t {
    const int8_t q = codes[row].of(value);
    layout.row_starts[row] -= q * activation_offset(layout.activation_bits);
    return static_cast<uint8_t>(q);
  };
  const PairRule rule = pair_rule(layout, kernels);
  const auto arrange = [rule](std::vector<Dword>& quads) {
    return rule == PairRule::any       ? static_cast<int64_t>(quads.size() / 2)
           : rule == PairRule::bounded ? pair_up(quads)
                                       : 0;
  };
  fill_dwords<kLanes>(layout, weight, row_start, cut, quantise, arrange);
  return layout;
}

}  // namespace gossamer
