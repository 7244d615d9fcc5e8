// SPDX-License-Identifier: Apache-2.0
// Lookups against double, and the bits of every set, one thread and two, against the reference.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../tests/harness.hpp"
#include "table/groups.hpp"
#include "table/table.hpp"

namespace gossamer::check {
namespace {

using table::Bags;
using table::Groups;
using table::Rule;
using table::Seen;
using table::Table;
using table::Update;

// A table and a batch in memory of their exact sizes, so that sanitizers see what is read behind them.
struct Case {
  int64_t num_rows, width, num_bags;
  std::vector<float> weight, weights, scales;
  std::vector<uint8_t> codes;
  std::vector<int64_t> ids, offsets;
  std::vector<int32_t> map;
  bool mean, by_row, half, mapped;
  int bits;

  Table floats(int fake_bits) const {
    return {weight.data(), num_rows, width, 32, fake_bits, by_row ? nullptr : scales.data(), by_row, half,
            mapped ? map.data() : nullptr, mapped ? static_cast<int64_t>(map.size()) : num_rows};
  }
  Table coded() const {
    return {codes.data(), num_rows, width, bits, 0, scales.data(), by_row, half, mapped ? map.data() : nullptr,
            mapped ? static_cast<int64_t>(map.size()) : num_rows};
  }
  Bags bags() const {
    return {ids.data(), static_cast<int64_t>(ids.size()), offsets.data(), 0, num_bags,
            weights.empty() ? nullptr : weights.data(), mean, 1};
  }
  std::string name() const {
    return "table " + std::to_string(num_rows) + "x" + std::to_string(width) + " bits=" + std::to_string(bits);
  }
};

Case random_case(int64_t rows, int64_t width, int64_t num_bags, int bits, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Case c = {};
  c.num_rows = rows, c.width = width, c.num_bags = num_bags, c.bits = bits;
  c.mean = random() % 2, c.by_row = random() % 2, c.half = random() % 2, c.mapped = random() % 3 == 0;
  for (int64_t i = 0; i < rows * width; ++i) c.weight.push_back(normal(random));
  if (c.mapped)
    for (int64_t i = 0; i < 2 * rows; ++i) c.map.push_back(static_cast<int32_t>(random() % rows));
  c.offsets.push_back(0);
  for (int64_t bag = 0; bag < num_bags; ++bag) {
    const int64_t count = rows ? random() % 6 : 0;
    for (int64_t i = 0; i < count; ++i)
      c.ids.push_back(static_cast<int64_t>(random() % (c.mapped ? c.map.size() : static_cast<size_t>(rows))));
    c.offsets.push_back(static_cast<int64_t>(c.ids.size()));
  }
  if (!c.mean && random() % 2)
    for (size_t i = 0; i < c.ids.size(); ++i) c.weights.push_back(normal(random));
  c.scales.assign(static_cast<size_t>(c.by_row ? rows : 1), 0.3f);
  c.codes.resize(static_cast<size_t>(rows * table::row_bytes(width, bits)));
  Table plain = c.floats(0);
  table::encode(plain, bits, c.codes.data(), c.scales.data(), Isa::reference, 1);
  return c;
}

std::vector<float> pooled(const Table& t, const Case& c, Isa isa, int threads, Seen& seen) {
  std::vector<float> out(static_cast<size_t>(c.num_bags * c.width));
  seen = table::pool(t, c.bags(), out.data(), c.width, isa, threads);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), 4 * a.size()));
}

// The largest error against double, of what a few roundings of the sum of magnitudes allow.
double worst_error(const Case& c, const std::vector<float>& out) {
  double worst = 0.0;
  const Bags bags = c.bags();
  for (int64_t bag = 0; bag < c.num_bags; ++bag)
    for (int64_t column = 0; column < c.width; ++column) {
      double sum = 0.0, size = 0.0;
      int64_t count = 0;
      for (int64_t p = bags.first(bag); p < bags.first(bag + 1); ++p) {
        if (c.ids[static_cast<size_t>(p)] == bags.padding) continue;
        const int64_t id = c.ids[static_cast<size_t>(p)], row = c.mapped ? c.map[static_cast<size_t>(id)] : id;
        const double factor = bags.weights ? bags.weights[p] : 1.0;
        const double x = factor * c.weight[static_cast<size_t>(row * c.width + column)];
        sum += x, size += std::fabs(x), ++count;
      }
      if (c.mean && count) sum /= static_cast<double>(count), size /= static_cast<double>(count);
      const double found = out[static_cast<size_t>(bag * c.width + column)];
      worst = std::fmax(worst, std::fabs(found - sum) / (1e-6 * size + 1e-30));
    }
  return worst;
}

void check_lookups(const Case& c, Tally& tally) {
  Seen expected_seen, seen;
  for (const int form : {0, 1, 2}) {
    const Table t = form == 2 ? c.coded() : c.floats(form == 1 ? c.bits : 0);
    const std::vector<float> expected = pooled(t, c, Isa::reference, 1, expected_seen);
    const double error = form == 0 ? worst_error(c, expected) : 0.0;
    for (const Isa isa : isas_to_check())
      for (const int threads : {1, 2}) {
        const std::vector<float> found = pooled(t, c, isa, threads, seen);
        const bool agrees = same_bits(found, expected) && seen.top == expected_seen.top &&
                            seen.clipped == expected_seen.clipped;
        if (!agrees || error > 1.0)
          tally.fail("table", isa, c.name() + (agrees ? ": wrong sum" : ": bits differ"));
        else
          tally.pass("table", isa, error);
      }
  }
  for (const Isa isa : isas_to_check()) {
    std::vector<uint8_t> codes(c.codes.size());
    std::vector<float> scales(c.by_row ? c.scales.size() : 1, c.scales.empty() ? 1.0f : c.scales[0]);
    table::encode(c.floats(0), c.bits, codes.data(), scales.data(), isa, 2);
    if (codes != c.codes || !same_bits(scales, c.scales))
      tally.fail("table", isa, c.name() + ": codes differ");
    else
      tally.pass("table", isa, 0.0);
  }
}

// Codes with a scale for every span: against the same rows as floats, on every set.
void check_spans(const Case& c, std::mt19937& random, Tally& tally) {
  for (const int64_t span : {16, 32, 64}) {
    Table t = c.coded();
    t.by_row = true, t.span = span;
    std::vector<float> scales(static_cast<size_t>(c.num_rows * t.scales_of_row())), weight;
    for (float& scale : scales) scale = 0.01f + 0.001f * static_cast<float>(random() % 97);
    t.scales = scales.data();
    for (int64_t row = 0; row < c.num_rows; ++row)
      for (int64_t column = 0; column < c.width; ++column) {
        const uint8_t byte = c.codes[static_cast<size_t>(row * table::row_bytes(c.width, c.bits) + column * c.bits / 8)];
        const int field = byte >> (column * c.bits % 8) & ((1 << c.bits) - 1);
        const int code = c.bits == 8 ? static_cast<int8_t>(byte) : field - (1 << (c.bits - 1));
        weight.push_back(scales[static_cast<size_t>(row * t.scales_of_row() + column / span)] * static_cast<float>(code));
      }
    Table floats = c.floats(0);
    floats.data = weight.data();
    Seen seen;
    const std::vector<float> expected = pooled(floats, c, Isa::reference, 1, seen);
    for (const Isa isa : isas_to_check())
      for (const int threads : {1, 2}) {
        if (same_bits(pooled(t, c, isa, threads, seen), expected))
          tally.pass("table", isa, 0.0);
        else
          tally.fail("table", isa, c.name() + ": spans of " + std::to_string(span) + " have other bits");
      }
  }
}

// All pairs of a few tables: every set and number of threads against the reference, and that against double.
void check_pairs(const Case& c, int64_t count, bool has_first, std::mt19937& random, Tally& tally) {
  std::normal_distribution<float> normal;
  const Table t = c.coded();
  const int64_t batch = c.num_bags;
  const std::vector<Table> tables(static_cast<size_t>(count), t);
  const std::vector<int64_t> paddings(static_cast<size_t>(count), 1);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < batch * count; ++i) ids.push_back(static_cast<int64_t>(random() % t.num_ids));
  std::vector<float> first;
  for (int64_t i = 0; has_first && i < batch * c.width; ++i) first.push_back(normal(random));
  table::Pairs p = {tables.data(), paddings.data(), count, c.width, ids.data(), batch,
                    has_first && batch ? first.data() : nullptr, nullptr};
  const auto run = [&](Isa isa, int threads) {
    std::vector<float> out(static_cast<size_t>(batch * p.out_width()));
    p.out = out.data();
    table::pairs(p, isa, threads);
    return out;
  };
  const std::vector<float> expected = run(Isa::reference, 1);
  double worst = 0.0;
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<std::vector<double>> rows;
    if (p.first) rows.emplace_back(p.first + b * c.width, p.first + (b + 1) * c.width);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = ids[static_cast<size_t>(b * count + i)];
      std::vector<float> row(static_cast<size_t>(c.width));
      Seen seen = {};
      seen = table::pool(t, Bags{&id, 1, nullptr, 1, 1, nullptr, false, 1}, row.data(), c.width, Isa::reference, 1);
      rows.emplace_back(row.begin(), row.end());
    }
    const float* at = expected.data() + b * p.out_width() + c.width;
    for (size_t i = 1; i < rows.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        double sum = 0.0, size = 0.0;
        for (size_t k = 0; k < rows[i].size(); ++k)
          sum += rows[i][k] * rows[j][k], size += std::fabs(rows[i][k] * rows[j][k]);
        worst = std::fmax(worst, std::fabs(*at++ - sum) / (2e-6 * size + 1e-30));
      }
  }
  for (const Isa isa : isas_to_check())
    for (const int threads : {1, 2}) {
      const bool agrees = same_bits(run(isa, threads), expected);
      if (!agrees || worst > 1.0)
        tally.fail("table", isa, c.name() + (agrees ? ": wrong dots" : ": dots have other bits"));
      else
        tally.pass("table", isa, worst);
    }
}

struct State {
  std::vector<float> weight, sums, means, squares, scales, values;
  std::vector<uint8_t> codes;

  bool operator==(const State& o) const {
    return same_bits(weight, o.weight) && same_bits(sums, o.sums) && same_bits(means, o.means) &&
           same_bits(squares, o.squares) && same_bits(scales, o.scales) && same_bits(values, o.values) &&
           codes == o.codes;
  }
};

void check_update(const Case& c, Rule rule, bool codes, std::mt19937& random, Tally& tally) {
  std::normal_distribution<float> normal;
  std::vector<float> grad;
  for (int64_t i = 0; i < c.num_bags * c.width; ++i) grad.push_back(normal(random));
  const Groups groups = table::group_by_row(c.floats(0), c.bags());
  const size_t all = c.weight.size(), rows = static_cast<size_t>(c.num_rows);
  State before = {c.weight, std::vector<float>(rows, 0.5f), std::vector<float>(all, 0.1f), std::vector<float>(all, 0.2f),
                  std::vector<float>(rows, 0.3f), std::vector<float>(groups.rows.size() * static_cast<size_t>(c.width)),
                  std::vector<uint8_t>(rows * static_cast<size_t>(table::row_bytes(c.width, 4)), 0x5a)};
  const auto run = [&](State s, Isa isa, int threads) {
    Update u = {};
    u.grad = grad.data(), u.grad_stride = c.width;
    u.num_segments = static_cast<int64_t>(groups.rows.size());
    u.rows = groups.rows.data(), u.order = groups.order.data(), u.first = groups.first.data();
    u.bag_of = groups.bag_of.data();
    u.weights = c.bags().weights;
    u.bag_factors = groups.bag_factors.empty() ? nullptr : groups.bag_factors.data();
    u.values = s.values.data(), u.rule = rule, u.width = c.width, u.noise = 77;
    u.data = codes ? static_cast<void*>(s.codes.data()) : static_cast<void*>(s.weight.data());
    u.bits = codes ? 4 : 32;
    u.scales = codes ? s.scales.data() : nullptr;
    u.sums = s.sums.data(), u.means = rule == Rule::adam ? s.means.data() : nullptr, u.squares = s.squares.data();
    u.lr = 0.1f, u.eps = 1e-3f, u.mean_rate = 0.1f, u.square_rate = 0.01f;
    table::update(u, isa, threads);
    return s;
  };
  const State expected = run(before, Isa::reference, 1);
  for (const Isa isa : isas_to_check())
    for (const int threads : {1, 2}) {
      if (run(before, isa, threads) == expected)
        tally.pass("table", isa, 0.0);
      else
        tally.fail("table", isa, c.name() + ": an update has other bits");
    }
}

void check_case(const Case& c, std::mt19937& random, Tally& tally) {
  check_lookups(c, tally);
  check_spans(c, random, tally);
  check_pairs(c, 1 + random() % 9, random() % 2, random, tally);
  if (c.mapped) return;
  for (const Rule rule : {Rule::none, Rule::sgd, Rule::adagrad, Rule::adam}) check_update(c, rule, false, random, tally);
  for (const Rule rule : {Rule::sgd, Rule::adagrad}) check_update(c, rule, true, random, tally);
}

}  // namespace

void check_table(Tally& tally) {
  std::mt19937 random(1);
  for (const int64_t width : {1, 2, 3, 15, 16, 17, 33, 64, 65, 130, 257})
    for (const int bits : {8, 4, 2}) {
      check_case(random_case(20, width, 9, bits, random), random, tally);
      check_case(random_case(700, width, 300, bits, random), random, tally);
    }
  check_case(random_case(1, 5, 0, 4, random), random, tally);
  check_case(random_case(1, 5, 3, 4, random), random, tally);
}

void fuzz_table(std::mt19937& random, Tally& tally) {
  const int64_t rows = 1 + random() % (random() % 2 ? 8 : 2000), width = 1 + random() % 150;
  const int bits = 2 << (random() % 3);
  check_case(random_case(rows, width, random() % (random() % 2 ? 5 : 400), bits, random), random, tally);
}

}  // namespace gossamer::check
