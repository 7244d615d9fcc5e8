// SPDX-License-Identifier: Apache-2.0
// The products of a training step: fresh layouts equal packed ones, forward and its transpose are held
// against the oracle of every packed weight, the sampled product against its own.
#include <cmath>

#include "gossamer/fresh_panel.hpp"
#include "gossamer/train.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

// Makes a product that packs in every call look like a packed weight.
struct PackedEachCall final : PackedWeight {
  using Product = void (*)(const KeptWeight&, const LinearCall&, Isa, int);
  const Weight& weight;
  Product product;
  Isa isa;

  PackedEachCall(const Weight& source, Product what, Isa set, bool transposed)
      : weight(source), product(what), isa(set) {
    rows = transposed ? source.columns : source.rows;
    columns = transposed ? source.rows : source.columns;
    kept = static_cast<int64_t>(source.kept.size());
  }
  size_t bytes() const override { return 0; }
  void run(const LinearCall& call, int num_threads) const override {
    product(weight.view(), call, isa, num_threads);
  }
};

Weight transposed(const Weight& weight) {
  std::mt19937 unused(0);
  const auto keeps = [&](int64_t r, int64_t k) { return weight.mask[k * weight.columns + r] != 0; };
  Weight turned = masked_weight(weight.columns, weight.rows, keeps, unused);
  turned.kept.clear();
  for (int64_t r = 0; r < turned.rows; ++r)
    for (int64_t k = 0; k < turned.columns; ++k) {
      const float value = weight.dense[k * weight.columns + r];
      turned.dense[r * turned.columns + k] = value;
      if (keeps(r, k)) turned.kept.push_back(value);
    }
  return turned;
}

bool same_blocks(const std::vector<PanelBlock>& a, const std::vector<PanelBlock>& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i)
    same = a[i].first_row == b[i].first_row && a[i].first_value == b[i].first_value && a[i].num_rows == b[i].num_rows;
  return same;
}

bool same_layout(const PanelLayout& a, const PanelLayout& b) {
  return a.rows == b.rows && a.columns == b.columns && a.kept == b.kept && a.block_columns == b.block_columns &&
         a.slab_columns == b.slab_columns &&
         a.tile_rows == b.tile_rows && a.num_blocks == b.num_blocks && a.num_tiles == b.num_tiles &&
         a.group_rows == b.group_rows && same_blocks(a.blocks, b.blocks) && a.row_ids == b.row_ids &&
         a.row_counts == b.row_counts && a.offsets == b.offsets && a.values == b.values;
}

void check_layouts(Isa isa, const Weight& weight, const Weight& turned, Tally& tally) {
  const PanelShape* shapes = panel_kernels(isa).shapes;
  for (const int threads : {1, 2}) {
    if (!same_layout(fresh_panel(weight.view(), shapes, threads).layout, pack_panel(weight.view(), shapes)))
      tally.fail("train", isa, "fresh_panel differs from pack_panel");
    if (!same_layout(fresh_transposed_panel(weight.view(), shapes, threads).layout, pack_panel(turned.view(), shapes)))
      tally.fail("train", isa, "fresh_transposed_panel differs from pack_panel");
  }
}

void check_sampled(Isa isa, const Weight& weight, const Call& call, unsigned seed, Tally& tally) {
  const int64_t x_stride = weight.columns + call.x_pad, grad_stride = weight.rows + call.y_pad;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  // The last row ends with the buffer, so that AddressSanitizer sees any access behind it.
  const auto fill = [&](int64_t width, int64_t pad) {
    std::vector<float> floats(call.tokens ? call.tokens * (width + pad) - pad : 0);
    for (float& v : floats) v = normal(random) * call.scale;
    return floats;
  };
  const std::vector<float> x = fill(weight.columns, call.x_pad), grad = fill(weight.rows, call.y_pad);
  const SampledCall sampled = {x.data(), x_stride, grad.data(), grad_stride, call.tokens};
  std::vector<float> one(weight.kept.size(), NAN), two(weight.kept.size(), NAN);
  train_grad_values(weight.view(), sampled, one.data(), isa, 1);
  train_grad_values(weight.view(), sampled, two.data(), isa, 2);
  double worst = 0.0;
  size_t at = 0;
  for (int64_t r = 0; r < weight.rows; ++r)
    for (int64_t k = 0; k < weight.columns; ++k) {
      if (!weight.mask[r * weight.columns + k]) continue;
      double sum = 0.0, magnitude = 0.0;
      for (int64_t t = 0; t < call.tokens; ++t) {
        const double product = double(grad[t * grad_stride + r]) * x[t * x_stride + k];
        sum += product;
        magnitude += std::fabs(product);
      }
      const double tolerance = double(call.tokens + 4) / (1 << 24) * magnitude;
      const double error = std::fabs(one[at] - sum);
      if (!(error <= tolerance) || one[at] != two[at])
        return tally.fail("train", isa, "dW[" + std::to_string(r) + "][" + std::to_string(k) + "] = " +
                                            std::to_string(one[at]) + " and " + std::to_string(two[at]) +
                                            ", expected " + std::to_string(sum));
      if (tolerance > 0.0 && error / tolerance > worst) worst = error / tolerance;
      ++at;
    }
  tally.pass("train", isa, worst);
}

// All three products of a weight, on every instruction set.
void check_weight(const Weight& weight, std::mt19937& random, Tally& tally) {
  const Weight turned = transposed(weight);
  const Call call = random_call(random);
  const unsigned seed = random();
  for (const Isa isa : isas_to_check()) {
    check_layouts(isa, weight, turned, tally);
    check_packed("train", isa, weight, PackedEachCall(weight, train_linear, isa, false), call, seed, tally);
    check_packed("train", isa, turned, PackedEachCall(weight, train_grad_input, isa, true), call, seed, tally);
    check_sampled(isa, weight, call, seed, tally);
  }
}

}  // namespace

void check_train(Tally& tally) {
  const int64_t all_rows[] = {0, 1, 17, 130};
  const int64_t all_columns[] = {0, 1, 97, 260};
  const double densities[] = {0.0, 0.05, 0.12, 0.4, 1.0};
  std::mt19937 random(20240608);
  for (const int64_t rows : all_rows)
    for (const int64_t columns : all_columns)
      for (const double density : densities)
        check_weight(random_weight(rows, columns, density, random), random, tally);
  // Its panel is larger than any scratch before it.
  check_weight(random_weight(17, 6000, 0.02, random), random, tally);
}

void fuzz_train(std::mt19937& random, Tally& tally) {
  const Draw draw = random_draw(random);
  check_weight(random_weight(draw.rows, draw.columns, draw.density, random), random, tally);
}

}  // namespace gossamer::check
