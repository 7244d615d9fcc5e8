// SPDX-License-Identifier: Apache-2.0
// Products with graphs against double, one thread against two: random edges, rows without any, rows in another
// order, both directions.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "graph/graph.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

struct Sample {
  int64_t rows, columns;
  std::vector<int64_t> sources, targets;
  std::vector<int64_t> starts;
  std::vector<int32_t> order, ids, numbers;

  EdgeRows view(bool placed) const {
    return {rows, starts.data(), ids.data(), order.empty() ? nullptr : order.data(), placed ? numbers.data() : nullptr};
  }
};

Sample random_edges(int64_t rows, int64_t columns, int64_t count, bool shuffled, std::mt19937& random) {
  Sample s{rows, columns, {}, {}, {}, {}, {}, {}};
  for (int64_t e = 0; e < count && rows && columns; ++e) {
    s.sources.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(columns)));
    // Squared: some rows have many edges, most have few.
    const double place = static_cast<double>(random() % 1000) / 1000.0;
    s.targets.push_back(static_cast<int64_t>(place * place * static_cast<double>(rows)));
  }
  if (shuffled) {
    s.order.resize(static_cast<size_t>(rows));
    std::iota(s.order.begin(), s.order.end(), 0);
    std::shuffle(s.order.begin(), s.order.end(), random);
  }
  s.starts.resize(static_cast<size_t>(rows) + 1);
  s.ids.resize(s.sources.size());
  s.numbers.resize(s.sources.size());
  edges_to_rows(s.sources.data(), s.targets.data(), static_cast<int64_t>(s.sources.size()), rows,
                s.order.empty() ? nullptr : s.order.data(), s.starts.data(), s.ids.data(), s.numbers.data());
  return s;
}

std::vector<float> normals(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// The error of `found` against `expected`, in units of what rounding allows beside sums of `size`.
double error_of(const std::vector<float>& found, const std::vector<double>& expected, const std::vector<double>& size) {
  double worst = 0.0;
  for (size_t i = 0; i < found.size(); ++i)
    worst = std::fmax(worst, std::fabs(found[i] - expected[i]) / (1e-6 * (size[i] + 1.0)));
  return worst;
}

void report(const char* what, Isa isa, bool same, double error, Tally& tally) {
  const std::string name = std::string("graph ") + what;
  if (!same)
    tally.fail("graph", isa, name + ": bits differ between threads");
  else if (!(error <= 1.0))
    tally.fail("graph", isa, name + ": off by " + std::to_string(error) + " of what rounding allows");
  else
    tally.pass("graph", isa, error);
}

uint16_t bf16_of(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof v);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float float_of(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

// bfloat16 features against the float product of the same numbers, rounded: a unit in the last place at most.
void check_bf16(const Sample& s, SpmmCall call, Isa isa, Tally& tally) {
  const size_t in = static_cast<size_t>(s.columns * call.width), out = static_cast<size_t>(s.rows * call.width);
  std::vector<uint16_t> halves(in), y(out, 7), again(out, 8);
  std::vector<float> x(in), exact(out);
  for (size_t i = 0; i < in; ++i) x[i] = float_of(halves[i] = bf16_of(call.x[i]));
  call.x = x.data(), call.y = exact.data();
  graph_spmm(call, isa, 1);
  Bf16SpmmCall own = {call.edges, call.values, call.heads, call.bias, halves.data(), y.data(), call.width};
  graph_bf16_spmm(own, isa, 1);
  own.y = again.data();
  graph_bf16_spmm(own, isa, 2);
  double worst = 0.0;
  for (size_t i = 0; i < out; ++i)
    worst = std::fmax(worst, std::fabs(float_of(y[i]) - exact[i]) / (std::fabs(exact[i]) / 256 + 1e-6));
  report("bf16 spmm", isa, y == again, worst, tally);
}

void check_products(const Sample& s, int64_t width, int64_t heads, std::mt19937& random, Tally& tally) {
  const size_t edges = s.sources.size(), w = static_cast<size_t>(width), h = static_cast<size_t>(heads);
  const std::vector<float> x = normals(static_cast<size_t>(s.columns) * w, random), bias = normals(w, random);
  const std::vector<float> grad = normals(static_cast<size_t>(s.rows) * w, random);
  const std::vector<float> values = normals(edges * h, random);  // by number, as edges were given
  std::vector<double> sum(grad.size()), size(grad.size()), dots(edges * h), dot_size(edges * h);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = size[i] = bias[i % w];
  for (size_t i = 0; i < size.size(); ++i) size[i] = std::fabs(size[i]);
  for (size_t e = 0; e < edges; ++e)
    for (size_t f = 0; f < w; ++f) {
      const size_t to = static_cast<size_t>(s.targets[e]) * w + f, from = static_cast<size_t>(s.sources[e]) * w + f;
      const size_t head = e * h + f / (w / h);
      const double product = static_cast<double>(values[head]) * x[from], dot = static_cast<double>(grad[to]) * x[from];
      sum[to] += product, size[to] += std::fabs(product);
      dots[head] += dot, dot_size[head] += std::fabs(dot);
    }
  for (const Isa isa : isas_to_check()) {
    std::vector<float> y(grad.size(), 7.0f), again(grad.size(), 8.0f), out(edges * h), out_again(edges * h);
    SpmmCall call = {s.view(true), values.data(), heads, bias.data(), x.data(), y.data(), width};
    graph_spmm(call, isa, 1);
    call.y = again.data();
    graph_spmm(call, isa, 2);
    report("spmm", isa, y == again, error_of(y, sum, size), tally);
    check_bf16(s, call, isa, tally);
    SddmmCall sampled = {s.view(true), grad.data(), x.data(), out.data(), heads, width};
    graph_sddmm(sampled, isa, 1);
    sampled.out = out_again.data();
    graph_sddmm(sampled, isa, 2);
    report("sddmm", isa, out == out_again, error_of(out, dots, dot_size), tally);
  }
}

// Softmax and product against double; where keep is given, weights are multiplied by it.
void check_attention(const Sample& s, int64_t width, int64_t heads, std::mt19937& random, Tally& tally) {
  const size_t edges = s.sources.size(), w = static_cast<size_t>(width), h = static_cast<size_t>(heads);
  const std::vector<float> x = normals(static_cast<size_t>(s.columns) * w, random);
  const std::vector<float> target = normals(static_cast<size_t>(s.rows) * h, random);
  const std::vector<float> source = normals(static_cast<size_t>(s.columns) * h, random);
  std::vector<float> keep(edges * h);
  for (float& v : keep) v = random() % 2 ? 2.0f : 0.0f;
  std::vector<double> total(static_cast<size_t>(s.rows) * h), power(edges * h);
  std::vector<double> sum(static_cast<size_t>(s.rows) * w), size(sum.size());
  for (size_t e = 0; e < edges; ++e)
    for (size_t q = 0; q < h; ++q) {
      const double z = static_cast<double>(target[static_cast<size_t>(s.targets[e]) * h + q]) +
                       source[static_cast<size_t>(s.sources[e]) * h + q];
      power[e * h + q] = std::exp(z > 0 ? z : 0.2 * z);
      total[static_cast<size_t>(s.targets[e]) * h + q] += power[e * h + q];
    }
  std::vector<size_t> place(edges);
  for (size_t at = 0; at < edges; ++at) place[static_cast<size_t>(s.numbers[at])] = at;
  for (size_t e = 0; e < edges; ++e)
    for (size_t f = 0; f < w; ++f) {
      const size_t q = f / (w / h), to = static_cast<size_t>(s.targets[e]) * w + f;
      const double weight = power[e * h + q] / total[static_cast<size_t>(s.targets[e]) * h + q] * keep[place[e] * h + q];
      const double product = weight * x[static_cast<size_t>(s.sources[e]) * w + f];
      sum[to] += product, size[to] += std::fabs(product);
    }
  for (const Isa isa : isas_to_check()) {
    std::vector<float> results[2];
    for (int threads = 1; threads <= 2; ++threads) {
      std::vector<float> weights(edges * h), kept(edges * h), y(sum.size(), 7.0f);
      const SoftmaxCall softmax = {s.view(false), target.data(), source.data(), 0.2f, weights.data(), heads};
      const SpmmCall product = {s.view(false), kept.data(), heads, nullptr, x.data(), y.data(), width};
      graph_attention(softmax, product, keep.data(), kept.data(), isa, threads);
      results[threads - 1] = y;
    }
    report("attention", isa, results[0] == results[1], error_of(results[0], sum, size), tally);
  }
}

// Each row shares the gradient of the maxima it reaches.
void check_max(const Sample& s, int64_t width, std::mt19937& random, Tally& tally) {
  const size_t w = static_cast<size_t>(width);
  std::vector<float> x = normals(static_cast<size_t>(s.columns) * w, random);
  for (float& v : x) v = std::round(v * 2.0f);  // ties
  std::vector<double> most(static_cast<size_t>(s.rows) * w, -INFINITY), none(most.size());
  for (size_t e = 0; e < s.sources.size(); ++e)
    for (size_t f = 0; f < w; ++f) {
      double& to = most[static_cast<size_t>(s.targets[e]) * w + f];
      to = std::fmax(to, x[static_cast<size_t>(s.sources[e]) * w + f]);
    }
  for (double& v : most) v = std::isinf(v) ? 0.0 : v;
  for (const Isa isa : isas_to_check()) {
    std::vector<float> y(most.size(), 7.0f), ties(most.size()), again(most.size());
    graph_max({s.view(false), x.data(), y.data(), ties.data(), width}, isa, 1);
    graph_max({s.view(false), x.data(), again.data(), nullptr, width}, isa, 2);
    report("max", isa, y == again, error_of(y, most, none), tally);
  }
}

// Columns and values of what is not 0, a NaN among it.
void check_squeeze(int64_t rows, int64_t width, std::mt19937& random, Tally& tally) {
  std::vector<float> x(static_cast<size_t>(rows * width));
  for (float& v : x) v = random() % 8 ? (random() % 2 ? 0.0f : -0.0f) : static_cast<float>(random() % 100) - 50.5f;
  if (!x.empty()) x.back() = NAN;
  std::vector<int64_t> starts = {0};
  std::vector<int32_t> columns;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != 0.0f) columns.push_back(static_cast<int32_t>(static_cast<int64_t>(i) % width));
    if (static_cast<int64_t>(i) % width == width - 1) starts.push_back(static_cast<int64_t>(columns.size()));
  }
  for (const Isa isa : isas_to_check())
    for (int threads = 1; threads <= 2; ++threads) {
      std::vector<int64_t> found(static_cast<size_t>(rows) + 1);
      SqueezeCall call = {x.data(), width, found.data(), nullptr, nullptr};
      const auto total = static_cast<size_t>(graph_count(call, rows, isa, threads));
      std::vector<int32_t> ids(total);
      std::vector<float> values(total);
      call.columns = ids.data(), call.values = values.data();
      if (total) graph_squeeze(call, rows, isa, threads);
      bool same = found == starts && ids == columns;
      for (int64_t k = 0; same && k < rows; ++k)
        for (int64_t e = starts[static_cast<size_t>(k)]; e < starts[static_cast<size_t>(k) + 1]; ++e) {
          const float v = x[static_cast<size_t>(k * width + columns[static_cast<size_t>(e)])];
          same = same && (values[static_cast<size_t>(e)] == v || (v != v && values[static_cast<size_t>(e)] != v));
        }
      report("squeeze", isa, true, same ? 0.0 : 2.0, tally);
    }
}

void check_one(int64_t rows, int64_t columns, int64_t count, int64_t width, int64_t heads, bool shuffled,
               std::mt19937& random, Tally& tally) {
  const Sample s = random_edges(rows, columns, count, shuffled, random);
  check_products(s, width, heads, random, tally);
  check_attention(s, width, heads, random, tally);
  check_max(s, width, random, tally);
  check_squeeze(columns, width, random, tally);
}

}  // namespace

void check_graph(Tally& tally) {
  std::mt19937 random(1);
  for (const int64_t width : {1, 7, 15, 16, 17, 40, 64, 129, 272})
    for (const bool shuffled : {false, true}) check_one(23, 31, 300, width, 1, shuffled, random, tally);
  for (const int64_t heads : {2, 8, 16, 24}) check_one(23, 31, 300, heads * 9, heads, true, random, tally);
  check_one(0, 5, 0, 8, 1, false, random, tally);
  check_one(5, 3, 0, 8, 2, false, random, tally);
  check_one(1, 1, 50, 33, 1, false, random, tally);
}

void fuzz_graph(std::mt19937& random, Tally& tally) {
  const int64_t rows = 1 + static_cast<int64_t>(random() % 60), columns = 1 + static_cast<int64_t>(random() % 60);
  const int64_t heads = random() % 2 ? 1 : 1 + static_cast<int64_t>(random() % 20);
  const int64_t width = heads * (1 + static_cast<int64_t>(random() % (heads > 1 ? 20 : 150)));
  check_one(rows, columns, static_cast<int64_t>(random() % 500), width, heads, random() % 2, random, tally);
}

}  // namespace gossamer::check
