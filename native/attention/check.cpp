// SPDX-License-Identifier: Apache-2.0
// Attention against double, every instruction set, one thread against two: random tiles and masks, ragged rows, bias,
// caps, dropout, groups of heads, strides.
#include <cmath>
#include <limits>

#include "attention/attention.hpp"
#include "gossamer/bf16.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

struct Shape {
  int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
  bool ranges, bias, drops, is_bf16;
  float cap;
  double density;  // of tiles
  bool positions = false;  // with as many queries as keys
};

int64_t tiles_of(int64_t tokens) { return (tokens + kTile - 1) / kTile; }

// A tensor with gaps between its tokens, and the doubles it stands for.
struct Tensor {
  int64_t heads, tokens, dim, stride;
  bool is_bf16;
  std::vector<float> floats;
  std::vector<uint16_t> halves;

  Tensor(int64_t batch, int64_t h, int64_t t, int64_t d, bool bf16, std::mt19937* random, float fill = NAN)
      : heads(h), tokens(t), dim(d), stride(d + 3), is_bf16(bf16),
        floats(static_cast<size_t>(batch * h * t * (d + 3)), fill) {
    std::normal_distribution<float> normal;
    if (random)
      for (float& v : floats) v = normal(*random);
    if (is_bf16)
      for (float v : floats) halves.push_back(to_bf16(v));
  }
  HeadRows view() {
    void* const data = is_bf16 ? static_cast<void*>(halves.data()) : static_cast<void*>(floats.data());
    return {data, heads * tokens * stride, tokens * stride, stride};
  }
  size_t at(int64_t b, int64_t h, int64_t t, int64_t d) const {
    return static_cast<size_t>(((b * heads + h) * tokens + t) * stride + d);
  }
  double get(int64_t b, int64_t h, int64_t t, int64_t d) const {
    return is_bf16 ? from_bf16(halves[at(b, h, t, d)]) : floats[at(b, h, t, d)];
  }
};

struct Tiles {
  std::vector<int64_t> starts, turned_starts;
  std::vector<int32_t> columns, ids, turned_columns, turned_ids;
  std::vector<uint64_t> masks;
};

// Two lists of random tiles, some of them with masks.
Tiles random_tiles(const Shape& s, std::mt19937& random) {
  Tiles t;
  const int64_t rows = tiles_of(s.queries), columns = tiles_of(s.keys), num_masks = 3;
  for (int64_t m = 0; m < num_masks; ++m) {
    uint64_t bits[kTile], turned[kTile] = {};
    for (int64_t i = 0; i < kTile; ++i) {
      bits[i] = random() % 4 == 0 ? 0 : (uint64_t{random()} << 32 | random());
      for (int64_t j = 0; j < kTile; ++j) turned[j] |= (bits[i] >> j & 1) << i;
    }
    t.masks.insert(t.masks.end(), bits, bits + kTile);
    t.masks.insert(t.masks.end(), turned, turned + kTile);
  }
  t.starts.push_back(0), t.turned_starts.push_back(0);
  for (int list = 0; list < 2; ++list) {
    std::vector<std::vector<std::pair<int64_t, int32_t>>> by_key(static_cast<size_t>(columns));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j)
        if (static_cast<double>(random() % 1000) < s.density * 1000.0) {
          const int32_t id = random() % 2 ? -1 : static_cast<int32_t>(random() % num_masks);
          t.columns.push_back(static_cast<int32_t>(j)), t.ids.push_back(id);
          by_key[static_cast<size_t>(j)].push_back({i, id});
        }
      t.starts.push_back(static_cast<int64_t>(t.columns.size()));
    }
    for (const auto& row : by_key) {
      for (const auto& [i, id] : row) t.turned_columns.push_back(static_cast<int32_t>(i)), t.turned_ids.push_back(id);
      t.turned_starts.push_back(static_cast<int64_t>(t.turned_columns.size()));
    }
  }
  return t;
}

// Worst error beside what rounding allows; bf16 results are rounded once.
class Worst {
 public:
  explicit Worst(bool is_bf16) : relative_(is_bf16 ? 1.2e-2 : 2e-5), is_bf16_(is_bf16) {}
  void see(double found, double expected, double size) {
    const double error = std::fabs(found - expected) / (relative_ * std::fabs(expected) + (is_bf16_ ? 2e-2 : 4e-6) * (size + 1.0));
    worst = error > worst || error != error ? (error != error ? INFINITY : error) : worst;
  }
  double worst = 0.0;

 private:
  double relative_;
  bool is_bf16_;
};

void check_one(const Shape& s, std::mt19937& random, Tally& tally) {
  Tensor q(s.batch, s.heads, s.queries, s.dim, s.is_bf16, &random), k(s.batch, s.kv_heads, s.keys, s.dim, s.is_bf16, &random);
  Tensor v(s.batch, s.kv_heads, s.keys, s.value_dim, s.is_bf16, &random);
  Tensor grad(s.batch, s.heads, s.queries, s.value_dim, s.is_bf16, &random);
  const Tiles tiles = random_tiles(s, random);
  std::vector<int32_t> lists, ranges;
  for (int64_t h = 0; h < s.heads; ++h) lists.push_back(static_cast<int32_t>(random() % 2));
  for (int64_t i = 0; s.ranges && i < s.batch * s.queries; ++i) {
    const int64_t a = static_cast<int64_t>(random() % static_cast<uint64_t>(s.keys + 1)), b = static_cast<int64_t>(random() % static_cast<uint64_t>(s.keys + 1));
    ranges.push_back(static_cast<int32_t>(std::min(a, b))), ranges.push_back(static_cast<int32_t>(std::max(a, b)));
  }
  std::vector<int32_t> positions;
  for (int64_t i = 0; s.positions && i < s.batch * s.heads * s.queries; ++i)
    positions.push_back(static_cast<int32_t>(random() % 50));
  const int64_t distances = s.queries + s.keys - 1;
  std::normal_distribution<float> normal;
  std::vector<float> bias, grad_lse;
  for (int64_t i = 0; s.bias && i < s.heads * distances; ++i) bias.push_back(normal(random));
  for (int64_t i = 0; i < s.batch * s.heads * s.queries; ++i) grad_lse.push_back(normal(random));
  const double p = s.drops ? 0.3 : 0.0;
  const size_t rows = grad_lse.size();

  // The oracle.
  const double scale = 0.35;
  Tensor none(0, 1, 0, 1, false, nullptr);
  std::vector<double> out(rows * static_cast<size_t>(s.value_dim)), lse(rows), dq(rows * static_cast<size_t>(s.dim));
  std::vector<double> dk(static_cast<size_t>(s.batch * s.kv_heads * s.keys * s.dim)), dv(static_cast<size_t>(s.batch * s.kv_heads * s.keys * s.value_dim));
  std::vector<double> dbias(static_cast<size_t>(s.batch * s.heads * (s.bias ? distances : 0)));
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t g = h / (s.heads / s.kv_heads);
      const DropBits drop(77, b * s.heads + h);
      for (int64_t i = 0; i < s.queries; ++i) {
        const size_t row = static_cast<size_t>((b * s.heads + h) * s.queries + i);
        std::vector<int64_t> seen;
        const int64_t* const starts = tiles.starts.data() + lists[static_cast<size_t>(h)] * tiles_of(s.queries) + i / kTile;
        for (int64_t t = starts[0]; t < starts[1]; ++t)
          for (int64_t c = 0; c < kTile; ++c) {
            const int64_t j = tiles.columns[static_cast<size_t>(t)] * kTile + c;
            const int32_t id = tiles.ids[static_cast<size_t>(t)];
            if (j >= s.keys) break;
            if (id >= 0 && !(tiles.masks[static_cast<size_t>(id * 2 * kTile + i % kTile)] >> c & 1)) continue;
            if (s.ranges) {
              const size_t at = static_cast<size_t>((b * s.queries + i) * 2);
              if (j < ranges[at] || j >= ranges[at + 1]) continue;
            }
            if (s.positions) {
              const size_t first = row - static_cast<size_t>(i);
              if (positions[first + static_cast<size_t>(j)] > positions[row]) continue;
            }
            seen.push_back(j);
          }
        std::vector<double> score(seen.size()), slope(seen.size(), 1.0), keep(seen.size(), 1.0), dweight(seen.size());
        double most = -INFINITY, total = 0.0, delta = -static_cast<double>(grad_lse[row]);
        for (size_t n = 0; n < seen.size(); ++n) {
          double dot = 0.0;
          for (int64_t d = 0; d < s.dim; ++d) dot += q.get(b, h, i, d) * k.get(b, g, seen[n], d);
          score[n] = dot * scale;
          if (s.cap > 0.0f) {
            const double t = std::tanh(score[n] / static_cast<double>(s.cap));
            score[n] = t * static_cast<double>(s.cap), slope[n] = 1.0 - t * t;
          }
          if (s.bias) score[n] += static_cast<double>(bias[static_cast<size_t>(h * distances + i - seen[n] + s.keys - 1)]);
          if (s.drops) keep[n] = DropBits::mix(drop.query(i) ^ drop.key(seen[n])) > static_cast<uint32_t>(p * 4294967296.0) ? 1.0 / (1.0 - p) : 0.0;
          most = std::fmax(most, score[n]);
        }
        for (const double one : score) total += std::exp(one - most);
        lse[row] = seen.empty() ? -INFINITY : most + std::log(total);
        for (size_t n = 0; n < seen.size(); ++n) {
          const double weight = std::exp(score[n] - lse[row]);
          for (int64_t d = 0; d < s.value_dim; ++d) {
            out[row * static_cast<size_t>(s.value_dim) + static_cast<size_t>(d)] += weight * keep[n] * v.get(b, g, seen[n], d);
            dv[static_cast<size_t>(((b * s.kv_heads + g) * s.keys + seen[n]) * s.value_dim + d)] += weight * keep[n] * grad.get(b, h, i, d);
            dweight[n] += keep[n] * grad.get(b, h, i, d) * v.get(b, g, seen[n], d);
          }
          delta += weight * dweight[n];
        }
        for (size_t n = 0; n < seen.size(); ++n) {
          const double dscore = std::exp(score[n] - lse[row]) * (dweight[n] - delta), dproduct = dscore * slope[n] * scale;
          if (s.bias) dbias[static_cast<size_t>((b * s.heads + h) * distances + i - seen[n] + s.keys - 1)] += dscore;
          for (int64_t d = 0; d < s.dim; ++d) {
            dq[row * static_cast<size_t>(s.dim) + static_cast<size_t>(d)] += dproduct * k.get(b, g, seen[n], d);
            dk[static_cast<size_t>(((b * s.kv_heads + g) * s.keys + seen[n]) * s.dim + d)] += dproduct * q.get(b, h, i, d);
          }
        }
      }
    }

  for (const Isa isa : isas_to_check()) {
    std::vector<std::vector<float>> first;
    double worst = 0.0;
    bool same = true;
    for (const int threads : {1, 2}) {
      Tensor found(s.batch, s.heads, s.queries, s.value_dim, s.is_bf16, nullptr);
      Tensor found_dq(s.batch, s.heads, s.queries, s.dim, s.is_bf16, nullptr), found_dk(s.batch, s.kv_heads, s.keys, s.dim, s.is_bf16, nullptr);
      Tensor found_dv(s.batch, s.kv_heads, s.keys, s.value_dim, s.is_bf16, nullptr);
      std::vector<float> found_lse(rows, NAN), found_dbias(dbias.size(), NAN);
      AttentionCall c = {s.batch, s.heads, s.kv_heads, s.queries, s.keys, s.dim, s.value_dim, s.is_bf16,
                         q.view(), k.view(), v.view(), found.view(), found_lse.data(),
                         {tiles.starts.data(), tiles.columns.data(), tiles.ids.data()},
                         {tiles.turned_starts.data(), tiles.turned_columns.data(), tiles.turned_ids.data()},
                         lists.data(), tiles.masks.data(), s.ranges ? ranges.data() : nullptr,
                         s.positions ? positions.data() : nullptr,
                         s.bias ? bias.data() : nullptr, static_cast<float>(scale), s.cap,
                         static_cast<uint32_t>(p * 4294967296.0), static_cast<float>(1.0 / (1.0 - p)), 77};
      attention_forward(c, isa, threads);
      const AttentionBackwardCall back = {c, grad.view(), grad_lse.data(), found_dq.view(), found_dk.view(), found_dv.view(),
                                          s.bias ? found_dbias.data() : nullptr};
      attention_backward(back, isa, threads);
      Worst w(s.is_bf16);
      const auto compare = [&](const Tensor& t, const std::vector<double>& expected, double size) {
        const int64_t count = t.dim ? static_cast<int64_t>(expected.size()) / std::max<int64_t>(t.dim, 1) : 0;
        for (int64_t r = 0; r < count; ++r)
          for (int64_t d = 0; d < t.dim; ++d)
            w.see(t.get(0, 0, r, d), expected[static_cast<size_t>(r * t.dim + d)], size);
        // Gaps between tokens are never written.
        for (int64_t r = 0; r < count; ++r)
          for (int64_t d = t.dim; d < t.stride; ++d)
            if (!std::isnan(t.get(0, 0, r, d))) w.worst = INFINITY;
      };
      const double many = std::sqrt(static_cast<double>(s.queries + s.keys)) * static_cast<double>(s.heads / s.kv_heads);
      compare(found, out, 1.0), compare(found_dq, dq, 8.0), compare(found_dk, dk, 2.0 * many), compare(found_dv, dv, many);
      for (size_t i = 0; i < rows; ++i)
        if (std::isinf(lse[i]) ? found_lse[i] != -INFINITY : !(std::fabs(found_lse[i] - lse[i]) < 1e-4)) w.worst = INFINITY;
      for (size_t i = 0; i < dbias.size(); ++i) w.see(found_dbias[i], dbias[i], 2.0 * many);
      worst = std::fmax(worst, w.worst);
      std::vector<std::vector<float>> all;
      for (Tensor* t : {&found, &found_dq, &found_dk, &found_dv}) {
        std::vector<float> values;
        for (size_t i = 0; i < t->floats.size(); ++i) {
          const float x = t->is_bf16 ? from_bf16(t->halves[i]) : t->floats[i];
          values.push_back(x == x ? x : 0.0f);
        }
        all.push_back(values);
      }
      all.push_back(found_lse), all.push_back(found_dbias);
      if (threads == 1)
        first = all;
      else
        same = same && all == first;
    }
    if (!same)
      tally.fail("attention", isa, "bits differ between threads");
    else if (!(worst <= 1.0))
      tally.fail("attention", isa, "off by " + std::to_string(worst) + " of what rounding allows");
    else
      tally.pass("attention", isa, worst);
  }
}

}  // namespace

void check_attention(Tally& tally) {
  std::mt19937 random(1);
  for (const int64_t tokens : {1, 5, 63, 64, 65, 130})
    for (const bool plain : {true, false})
      check_one({2, 2, 2, tokens, tokens, 16, 16, !plain, !plain, !plain, false, plain ? 0.0f : 3.0f, 0.8}, random, tally);
  for (const int64_t dim : {1, 7, 8, 17, 24, 64, 80}) check_one({1, 1, 1, 70, 90, dim, dim, false, false, false, false, 0.0f, 1.0}, random, tally);
  check_one({1, 6, 2, 100, 70, 32, 8, false, true, false, false, 0.0f, 0.6}, random, tally);
  check_one({2, 4, 1, 70, 129, 16, 40, true, false, true, true, 0.0f, 0.7}, random, tally);
  check_one({1, 2, 2, 40, 40, 8, 8, false, false, false, true, 0.0f, 0.0}, random, tally);
  check_one({2, 2, 1, 100, 100, 8, 8, true, true, false, false, 0.0f, 0.8, true}, random, tally);
  check_one({1, 1, 1, 0, 5, 8, 8, false, false, false, false, 0.0f, 1.0}, random, tally);
  check_one({0, 1, 1, 5, 5, 8, 8, false, false, false, false, 0.0f, 1.0}, random, tally);
}

void fuzz_attention(std::mt19937& random, Tally& tally) {
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  const int64_t kv_heads = 1 + below(2);
  const bool square = random() % 2;
  const int64_t queries = 1 + below(random() % 8 ? 70 : 140), keys = square ? queries : 1 + below(100), dim = 1 + below(20);
  check_one({1 + below(2), kv_heads * (1 + below(2)), kv_heads, queries, keys, dim, random() % 2 ? dim : 1 + below(20),
             random() % 2 == 0, random() % 3 == 0, random() % 3 == 0, random() % 4 == 0, random() % 3 ? 0.0f : 2.0f,
             static_cast<double>(below(11)) / 10.0, square && random() % 2 == 0},
            random, tally);
}

}  // namespace gossamer::check
