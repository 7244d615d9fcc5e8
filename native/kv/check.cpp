// SPDX-License-Identifier: Apache-2.0
// What a decoder remembers against double, every instruction set, one thread against two: random heads, lengths,
// windows with sinks, steps of one token and of many; with int8 and int4 against keys and values as codes stand for them.
#include <algorithm>
#include <cmath>

#include "harness.hpp"
#include "kv/code_rows.hpp"

namespace gossamer::check {
namespace {

struct Case {
  KvShape shape;
  KvRules rules;
  int64_t layer_window;
  float cap;
};

using Rows = std::vector<std::vector<float>>;

Rows random_rows(int64_t count, int64_t dim, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Rows rows(static_cast<size_t>(count), std::vector<float>(static_cast<size_t>(dim)));
  for (auto& row : rows)
    for (float& v : row) v = normal(random);
  return rows;
}

// Times a Hadamard matrix, in double.
void spread(std::vector<double>& row) {
  const std::vector<double> old = row;
  const size_t size = row.size() & -row.size();
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = 0.0;
    for (size_t j = 0; j < size; ++j)
      row[i] += (__builtin_parityll(i % size & j) ? -1.0 : 1.0) * old[i / size * size + j] / std::sqrt(double(size));
  }
}

// What is stored of a row in four bits; or, `as_given`, the row moved away from ties, which another order of sums could
// round otherwise.
void store_fours(std::vector<float>& row, bool as_given) {
  std::vector<double> wide(row.begin(), row.end());
  wide.resize((row.size() + kHeadDimUnit - 1) / kHeadDimUnit * kHeadDimUnit);
  spread(wide);
  double most = 0.0;
  for (const double v : wide) most = std::max(most, std::fabs(v));
  const double scale = most / 7.4;
  for (double& v : wide) {
    const double code = std::nearbyint(v / scale);
    v = as_given ? (code + 0.9 * (v / scale - code)) * scale : code * scale;
  }
  spread(wide);
  std::copy_n(wide.begin(), row.size(), row.begin());
}

// What is stored of rows.
Rows stored(Rows rows, KvType type) {
  if (type == KvType::int8)
    for (auto& row : rows) {
      const float scale = scale_of(row.data(), static_cast<int64_t>(row.size()));
      for (float& v : row) v = static_cast<float>(code_of(v, scale)) * scale;
    }
  if (type == KvType::int4)
    for (auto& row : rows) store_fours(row, false);
  return rows;
}

bool attends(const Case& c, int64_t query, int64_t key) {
  if (key > query || (c.layer_window && key <= query - c.layer_window)) return false;
  return !c.rules.window || key < c.rules.sinks || key > query - c.rules.window;
}

void check_one(const Case& c, const std::vector<int64_t>& steps, std::mt19937& random, Tally& tally) {
  const KvShape& s = c.shape;
  int64_t tokens = 0;
  for (const int64_t step : steps) tokens += step;
  Rows keys = random_rows(tokens * s.kv_heads, s.head_dim, random);
  Rows values = random_rows(tokens * s.kv_heads, s.head_dim, random);
  if (c.rules.type == KvType::int4 && s.head_dim % kHeadDimUnit == 0)
    for (Rows* rows : {&keys, &values})
      for (auto& row : *rows) store_fours(row, true);
  const Rows queries = random_rows(tokens * s.heads, s.head_dim, random);
  const Rows kept_keys = stored(keys, c.rules.type), kept_values = stored(values, c.rules.type);
  for (const Isa isa : isas_to_check()) {
    std::vector<float> outs[2];
    for (int threads = 1; threads <= 2; ++threads) {
      KvMemory memory(s, c.rules, isa);
      std::vector<float>& out = outs[threads - 1];
      out.assign(static_cast<size_t>(tokens * s.heads * s.head_dim), NAN);
      int64_t at = 0;
      for (const int64_t count : steps) {
        std::vector<float> turned(static_cast<size_t>(count * s.heads * memory.dim()), 0.0f);
        for (int64_t t = 0; t < count; ++t) {
          for (int64_t h = 0; h < s.kv_heads; ++h) {
            const auto row = static_cast<size_t>((at + t) * s.kv_heads + h);
            memory.append(0, h, at + t, keys[row].data(), values[row].data());
          }
          for (int64_t h = 0; h < s.heads; ++h)
            std::copy_n(queries[static_cast<size_t>((at + t) * s.heads + h)].data(), s.head_dim,
                        turned.data() + (t * s.heads + h) * memory.dim());
        }
        memory.attend({0, count, at, c.layer_window, turned.data(), nullptr, c.cap, out.data() + at * s.heads * s.head_dim},
                      threads);
        at += count;
      }
    }
    // Queries and weights are codes too where tokens come one by one.
    const double tolerance = c.rules.type == KvType::fp32 ? 2e-5 : 0.12;
    double worst = 0.0;
    for (int64_t i = 0; i < tokens; ++i)
      for (int64_t h = 0; h < s.heads; ++h) {
        std::vector<double> scores, sums(static_cast<size_t>(s.head_dim), 0.0);
        std::vector<int64_t> seen;
        const int64_t kv = h / (s.heads / s.kv_heads);
        for (int64_t j = 0; j <= i; ++j)
          if (attends(c, i, j)) {
            const auto& key = kept_keys[static_cast<size_t>(j * s.kv_heads + kv)];
            double score = 0.0;
            for (size_t d = 0; d < key.size(); ++d) score += double(key[d]) * queries[static_cast<size_t>(i * s.heads + h)][d];
            scores.push_back(c.cap == 0.0f ? score : c.cap * std::tanh(score / c.cap));
            seen.push_back(j);
          }
        const double most = *std::max_element(scores.begin(), scores.end());
        double total = 0.0;
        for (double& v : scores) total += v = std::exp(v - most);
        for (size_t n = 0; n < seen.size(); ++n) {
          const auto& value = kept_values[static_cast<size_t>(seen[n] * s.kv_heads + kv)];
          for (size_t d = 0; d < value.size(); ++d) sums[d] += scores[n] / total * value[d];
        }
        for (int64_t d = 0; d < s.head_dim; ++d) {
          const auto place = static_cast<size_t>((i * s.heads + h) * s.head_dim + d);
          const double error = std::fabs(outs[0][place] - sums[static_cast<size_t>(d)]);
          worst = error > worst || error != error ? (error != error ? INFINITY : error) : worst;
          if (outs[0][place] != outs[1][place]) worst = INFINITY;
        }
      }
    const char* const family = c.rules.type == KvType::fp32 ? "kv fp32" : c.rules.type == KvType::int8 ? "kv int8" : "kv int4";
    if (worst <= tolerance)
      tally.pass(family, isa, worst / tolerance);
    else
      tally.fail(family, isa,
                 "tokens " + std::to_string(tokens) + ", dim " + std::to_string(s.head_dim) + ", heads " +
                     std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + ", window " +
                     std::to_string(c.rules.window) + ", error " + std::to_string(worst));
  }
}

Case case_of(KvType type, int64_t heads, int64_t kv_heads, int64_t dim, int64_t sinks, int64_t window,
             int64_t layer_window, float cap) {
  return {{1, heads, kv_heads, dim, 512}, {type, sinks, window, 0, 0, 1.0}, layer_window, cap};
}

}  // namespace

void check_kv(Tally& tally) {
  std::mt19937 random(11);
  for (const KvType type : {KvType::fp32, KvType::int8, KvType::int4}) {
    check_one(case_of(type, 1, 1, 1, 0, 0, 0, 0.0f), {1}, random, tally);
    check_one(case_of(type, 6, 2, 20, 0, 0, 0, 0.0f), {1, 15, 1, 17, 64, 1, 33}, random, tally);
    check_one(case_of(type, 4, 4, 64, 0, 0, 21, 5.0f), {64, 64, 1, 1, 20}, random, tally);
    check_one(case_of(type, 5, 1, 16, 4, 9, 0, 0.0f), {64, 64, 64, 1, 1, 40, 3}, random, tally);
    check_one(case_of(type, 2, 1, 33, 0, 1, 0, 0.0f), {20, 1, 1, 64, 64}, random, tally);
  }
}

void fuzz_kv(std::mt19937& random, Tally& tally) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const auto type = static_cast<KvType>(below(3));
  const int64_t kv_heads = 1 + below(3), dim = type == KvType::int4 ? 16 * (1 + below(5)) : 1 + below(70), window = below(2) * (1 + below(90));
  const Case c = case_of(type, kv_heads * (1 + below(4)), kv_heads, dim,
                         window ? below(40) : 0, window, below(2) * (1 + below(60)), below(2) ? 3.0f : 0.0f);
  std::vector<int64_t> steps;
  for (int64_t i = 1 + below(5); i > 0; --i) steps.push_back(below(2) ? 1 + below(64) : 1);
  check_one(c, steps, random, tally);
}

}  // namespace gossamer::check
