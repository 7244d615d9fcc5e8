// SPDX-License-Identifier: Apache-2.0
// Attention of many tokens: tiles of 64 keys one after the other, all queries at once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/tile_masks.hpp"
#include "run_tasks.hpp"
#include "token.hpp"

namespace gossamer {
namespace {

// Queries of a step whose scores say which tiles its heads keep.
constexpr int64_t kLooks = 8;
// Tiles at the end that are kept whatever they hold, and the first.
constexpr int64_t kLatestTiles = 2;

constexpr float kNoScore = -std::numeric_limits<float>::infinity();

}  // namespace

// Some query heads that share keys, with all tokens of a step.
class KvTiles {
 public:
  KvTiles(const KvMemory& memory, const KvStep& step, int64_t first_head, int64_t heads)
      : m_(memory),
        s_(step),
        first_head_(first_head),
        heads_(heads),
        kv_head_(first_head / (memory.shape_.heads / memory.shape_.kv_heads)),
        width_(memory.shape_.heads * memory.dim_),
        last_(step.position + step.count) {}

  bool run() {
    const KvShape& shape = m_.shape_;
    const int64_t dim = m_.spreads() ? m_.dim_ : shape.head_dim, square = kTile * m_.dim_, tiles = over(last_, kTile) + over(m_.rules_.sinks, kTile) + 1;
    const bool looks = m_.rules_.mass < 1.0;
    const int64_t seen = looks ? over(last_, kPage) : 0;
    KvPieces pieces(4 * (3 * square + kTile * kTile + kTile + heads_ * (2 * square + 2 * kTile)) + tiles * (kEntry + heads_ * 9) +
                    seen * (8 + heads_ * kPage * 4) + KvHeads::bytes(heads_, m_.dim_) + heads_ * m_.dim_ * 4 +
                    (24 + 4 * heads_) * KvPieces::kUnit);
    if (!pieces) return false;
    float* const keys = pieces.take<float>(square);
    float* const values = pieces.take<float>(square);
    rows_ = pieces.take<float>(square);
    float* const scores = pieces.take<float>(kTile * kTile);
    float* const factor = pieces.take<float>(kTile);
    float* const turned = pieces.take<float>(heads_ * square);
    float* const sums = pieces.take<float>(heads_ * square);
    float* const most = pieces.take<float>(heads_ * kTile);
    float* const total = pieces.take<float>(heads_ * kTile);
    entries_ = pieces.take<Entry>(tiles);
    kept_ = pieces.take<uint8_t>(heads_ * tiles);
    tiles_ = tiles;
    list();
    std::fill_n(kept_, heads_ * tiles, uint8_t{1});
    if (looks) {
      masses_ = pieces.take<float>(heads_ * tiles);
      order_ = pieces.take<int32_t>(tiles);
      pages_ = pieces.take<const char*>(seen);
      looked_ = pieces.take<float>(heads_ * seen * kPage);
      query_ = pieces.take<float>(heads_ * m_.dim_);
      KvHeads heads(m_.rules_.type, m_.kernels_, heads_, m_.dim_, pieces);
      choose(heads);
    }
    std::fill_n(sums, heads_ * square, 0.0f);
    std::fill_n(most, heads_ * kTile, kLowestScore);
    std::fill_n(total, heads_ * kTile, 0.0f);
    for (int64_t i = 0; i < count_; ++i) {
      if (i == 0 || i == sink_entries_) turn_queries(i < sink_entries_ ? s_.of_sinks() : s_.queries, turned);
      bool is_read = false;
      for (int64_t h = 0; h < heads_; ++h) {
        if (!kept_[h * tiles + i]) continue;
        if (!is_read) read(entries_[i].tile, entries_[i].rows, keys, values);
        is_read = true;
        const TileScores how = {entries_[i].rows, 1.0f, s_.cap, entries_[i].is_whole ? nullptr : entries_[i].mask, nullptr, 0,
                                1.0f, nullptr, nullptr};
        m_.tiles_.forward({how, turned + h * square, keys, values, m_.dim_, m_.dim_, dim, dim, scores,
                                    most + h * kTile, total + h * kTile, sums + h * square});
      }
    }
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t i = 0; i < kTile; ++i) factor[i] = total[h * kTile + i] == 0.0f ? 0.0f : 1.0f / total[h * kTile + i];
      give(sums + h * square, factor, first_head_ + h);
    }
    return true;
  }

 private:
  struct Entry {
    int64_t tile, rows;
    bool is_whole;
    uint64_t mask[kTile];  // for each key bits over queries
  };
  static constexpr int64_t kEntry = sizeof(Entry);
  static int64_t over(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

  // The first position that token t attends to, sinks aside.
  int64_t first_of(int64_t t, int64_t window) const {
    return window ? std::max<int64_t>(0, s_.position + t + 1 - window) : 0;
  }

  // Tiles and the pairs in them: what the windows of the layer and of the rules leave, sinks first.
  void list() {
    const KvRules& rules = m_.rules_;
    const int64_t layer_first = first_of(0, s_.window), rule_first = first_of(0, rules.window);
    if (rules.sinks) {
      const int64_t behind = first_of(s_.count - 1, rules.window);
      add_tiles(layer_first, std::min(rules.sinks, behind), true);
    }
    sink_entries_ = count_;
    add_tiles(std::max(layer_first, rule_first), last_, false);
  }

  void add_tiles(int64_t from, int64_t to, bool are_sinks) {
    for (int64_t tile = from / kTile; tile * kTile < to; ++tile) {
      Entry& entry = entries_[count_];
      entry.tile = tile;
      entry.rows = std::min(kTile, to - tile * kTile);
      uint64_t every = ~uint64_t{0}, any = 0;
      for (int64_t r = 0; r < entry.rows; ++r) {
        entry.mask[r] = queries_of(tile * kTile + r, are_sinks);
        every &= entry.mask[r];
        any |= entry.mask[r];
      }
      entry.is_whole = (every | ~low_bits(s_.count)) == ~uint64_t{0};
      if (any) ++count_;
    }
  }

  // Queries that attend to a key: not before it, and with it in their windows; or the sinks that have left it.
  uint64_t queries_of(int64_t key, bool is_sink) const {
    const auto below = [&](int64_t end) { return low_bits(std::min(end - s_.position, s_.count)); };
    uint64_t bits = low_bits(s_.count) & ~below(key);
    if (s_.window) bits &= below(key + s_.window);
    const int64_t window = m_.rules_.window;
    if (window) bits &= is_sink ? ~below(key + window) : below(key + window);
    return bits;
  }

  void turn_queries(const float* queries, float* turned) const {
    for (int64_t h = 0; h < heads_; ++h, turned += kTile * m_.dim_) {
      const float* const own = queries + (first_head_ + h) * m_.dim_;
      if (!m_.spreads()) {
        m_.tiles_.turn(own, width_, s_.count, m_.shape_.head_dim, turned);
        continue;
      }
      for (int64_t t = 0; t < s_.count; ++t) std::copy_n(own + t * width_, m_.dim_, rows_ + t * m_.dim_);
      m_.kernels_.spread(rows_, s_.count, m_.dim_);
      m_.tiles_.turn(rows_, m_.dim_, s_.count, m_.dim_, turned);
    }
  }

  // The result of one head.
  void give(const float* sums, const float* factor, int64_t head) const {
    const int64_t dim = m_.shape_.head_dim, width = m_.shape_.heads * dim;
    float* const to = s_.out + head * dim;
    if (!m_.spreads()) return m_.tiles_.turn_back(sums, s_.count, dim, factor, 1.0f, to, width);
    m_.tiles_.turn_back(sums, s_.count, m_.dim_, factor, 1.0f, rows_, m_.dim_);
    m_.kernels_.spread(rows_, s_.count, m_.dim_);
    for (int64_t t = 0; t < s_.count; ++t) std::copy_n(rows_ + t * m_.dim_, dim, to + t * width);
  }

  void read(int64_t tile, int64_t rows, float* keys, float* values) const {
    for (int64_t p = 0; p * kPage < rows; ++p) {
      const int64_t page = tile * kPagesOfTile + p, at = p * kPage * m_.dim_;
      m_.kernels_.key_rows(m_.rules_.type, m_.key_page(s_.layer, kv_head_, page), m_.dim_, keys + at);
      m_.kernels_.value_rows(m_.rules_.type, m_.value_page(s_.layer, kv_head_, page), m_.dim_, values + at);
    }
  }

  // Weights of a few queries, added up by tile; each head keeps the heaviest tiles until they hold the mass.
  void choose(KvHeads& heads) {
    const int64_t first = sink_entries_, others = count_ - first - kLatestTiles;
    if (others < 2) return;
    std::fill_n(masses_, heads_ * tiles_, 0.0f);
    const int64_t from = entries_[first].tile * kPagesOfTile;
    int64_t looks = 0;
    for (int64_t t = s_.count - 1; t >= 0; t -= over(s_.count, kLooks), ++looks) look(heads, t, from);
    for (int64_t h = 0; h < heads_; ++h) {
      const float* const masses = masses_ + h * tiles_;
      for (int64_t i = 0; i < others; ++i) order_[i] = static_cast<int32_t>(i);
      std::sort(order_, order_ + others, [&](int32_t a, int32_t b) {
        return masses[a] != masses[b] ? masses[a] > masses[b] : a < b;
      });
      double held = masses[0];
      for (int64_t i = others; i < count_ - first; ++i) held += masses[i];
      const double wanted = m_.rules_.mass * static_cast<double>(looks);
      uint8_t* const kept = kept_ + h * tiles_ + first;
      for (int64_t i = 0; i < others; ++i) {
        const int32_t tile = order_[i];
        if (tile == 0) continue;
        kept[tile] = !(held >= wanted);
        held += masses[tile];
      }
    }
  }

  void look(KvHeads& heads, int64_t t, int64_t from) {
    const int64_t last = s_.position + t + 1, begin = first_of(t, s_.window);
    const int64_t pages = over(last, kPage) - from, used = pages * kPage;
    std::copy_n(s_.queries + t * width_ + first_head_ * m_.dim_, heads_ * m_.dim_, query_);
    for (int64_t p = 0; p < pages; ++p) pages_[p] = m_.key_page(s_.layer, kv_head_, from + p);
    m_.kernels_.scores(m_.rules_.type, heads.of(query_), pages_, pages, looked_, used);
    for (int64_t h = 0; h < heads_; ++h) {
      float* const own = looked_ + h * used;
      if (s_.cap != 0.0f) m_.kernels_.cap(own, used, s_.cap);
      for (int64_t j = from * kPage; j < begin; ++j) own[j - from * kPage] = kNoScore;
      for (int64_t j = last; j < (from + pages) * kPage; ++j) own[j - from * kPage] = kNoScore;
      const float factor = 1.0f / m_.kernels_.weigh(own, used);
      for (int64_t j = 0; j < used; j += kPage) {
        float sum = 0.0f;
        for (int64_t lane = 0; lane < kPage; ++lane) sum += own[j + lane];
        masses_[h * tiles_ + j / kTile] += sum * factor;
      }
    }
  }

  const KvMemory& m_;
  const KvStep& s_;
  int64_t first_head_, heads_, kv_head_, width_, last_;
  Entry* entries_ = nullptr;
  uint8_t* kept_ = nullptr;
  int64_t tiles_ = 0, count_ = 0, sink_entries_ = 0;
  float *rows_ = nullptr, *masses_ = nullptr, *looked_ = nullptr, *query_ = nullptr;
  int32_t* order_ = nullptr;
  const char** pages_ = nullptr;
};

void attend_tiles(const KvMemory& memory, const KvStep& step, int num_threads) {
  const int64_t heads = memory.shape().heads, group = heads / memory.shape().kv_heads;
  // Heads that share keys read them once, unless a thread had nothing to do then.
  const int64_t together = memory.shape().kv_heads % num_threads == 0 ? group : 1;
  run_tasks(heads / together, num_threads,
            [&](int64_t i) { return KvTiles(memory, step, i * together, together).run(); });
}

}  // namespace gossamer
