// SPDX-License-Identifier: Apache-2.0
// Attention of one token: the pages it reads, then scores, weights and values of them.
#include <algorithm>
#include <cstring>
#include <limits>

#include "code_rows.hpp"
#include "gossamer/fork.hpp"
#include "kv.hpp"
#include "run_tasks.hpp"
#include "token.hpp"

namespace gossamer {
namespace {

// Below this many multiply-adds attention is done before another thread has woken up.
constexpr int64_t kWorthThreads = 1 << 15;
// Pages at the end of a text that are read whatever they hold.
constexpr int64_t kLatest = 2;

uint32_t lanes(int64_t from, int64_t to) {
  return ((1u << to) - 1) & ~((1u << from) - 1);
}

// The `wanted` largest of `count` numbers that are not negative, at least; found by halving their bits.
float limit_of(const float* numbers, int64_t count, int64_t wanted) {
  uint32_t low = 0, high = 0x7f800000u;  // numbers >= low are enough
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    float limit;
    std::memcpy(&limit, &middle, sizeof limit);
    int64_t above = 0;
    for (int64_t i = 0; i < count; ++i) above += numbers[i] >= limit;
    (above >= wanted ? low : high) = middle;
  }
  float limit;
  std::memcpy(&limit, &low, sizeof limit);
  return limit;
}

}  // namespace

KvHeads::KvHeads(KvType type, const KvKernels& kernels, int64_t group, int64_t dim, KvPieces& pieces)
    : type_(type), kernels_(kernels), group_(group), dim_(dim) {
  floats_ = pieces.take<float>(group * dim);
  codes_ = pieces.take<int8_t>(group * dim);
  scales_ = pieces.take<float>(group);
  offsets_ = pieces.take<int32_t>(group);
}

KvQueries KvHeads::of(const float* queries) {
  if (type_ == KvType::fp32) return {group_, dim_, queries, nullptr, nullptr, nullptr};
  if (type_ == KvType::int4) {
    kernels_.spread(std::copy_n(queries, group_ * dim_, floats_) - group_ * dim_, group_, dim_);
    queries = floats_;
  }
  for (int64_t g = 0; g < group_; ++g)
    query_codes(queries + g * dim_, dim_, type_, codes_ + g * dim_, scales_ + g, offsets_ + g);
  return {group_, dim_, queries, codes_, scales_, offsets_};
}

KvQueries KvHeads::of_bounds(const float* queries) {
  const int64_t dim = dim_ / 2;
  for (int64_t g = 0; g < group_; ++g)
    for (int64_t d = 0; d < dim; ++d) {
      const float v = queries[g * dim + d];
      floats_[g * dim_ + d] = v < 0.0f ? v : 0.0f;        // with the least number of a column
      floats_[g * dim_ + dim + d] = v < 0.0f ? 0.0f : v;  // with the largest
    }
  return of(floats_);
}

class KvToken {
 public:
  KvToken(const KvMemory& memory, const KvStep& step, int64_t token, int64_t head)
      : m_(memory),
        s_(step),
        token_(token),
        head_(head),
        group_(memory.shape_.heads / memory.shape_.kv_heads),
        last_(step.position + token + 1) {}

  bool run() {
    const KvShape& shape = m_.shape_;
    const int64_t most = over(last_, kPage) + over(m_.rules_.sinks, kPage) + 2, stride = most * kPage;
    KvPieces pieces(KvHeads::bytes(group_, m_.dim_) + KvHeads::bytes(group_, 2 * m_.dim_) + most * (8 + 4 + 8 + 4) +
                  group_ * (2 * stride * 4 + most * 20 + m_.dim_ * 4 + 8) + 16 * KvPieces::kUnit);
    if (!pieces) return false;
    entries_ = pieces.take<Entry>(most);
    pages_ = pieces.take<const char*>(most);
    KvHeads heads(m_.rules_.type, m_.kernels_, group_, m_.dim_, pieces);
    KvHeads bounds(bound_type(m_.rules_.type), m_.kernels_, group_, 2 * m_.dim_, pieces);
    float* const scores = pieces.take<float>(group_ * stride);
    float* const masses = pieces.take<float>(stride);
    float* const factors = pieces.take<float>(group_);
    float* const out = pieces.take<float>(group_ * m_.dim_);
    char* const bytes = pieces.take<char>(group_ * most * 20);
    const int64_t row = (token_ * shape.heads + head_ * group_) * m_.dim_;
    list_window();
    if (m_.chooses(s_.layer)) choose(bounds, s_.queries + row, scores, masses);
    const int64_t used = count_ * kPage;
    if (sink_entries_) see(heads.of(s_.of_sinks() + row), 0, sink_entries_, scores, used);
    see(heads.of(s_.queries + row), sink_entries_, count_, scores, used);
    for (int64_t g = 0; g < group_; ++g) {
      float* const own = scores + g * used;
      if (s_.cap != 0.0f) m_.kernels_.cap(own, used, s_.cap);
      hide(own);
      factors[g] = 1.0f / m_.kernels_.weigh(own, used);
    }
    for (int64_t i = 0; i < count_; ++i) pages_[i] = m_.value_page(s_.layer, head_, entries_[i].page);
    m_.kernels_.values(m_.rules_.type, group_, m_.dim_, pages_, count_, scores, used, factors, bytes, out);
    if (m_.spreads()) m_.kernels_.spread(out, group_, m_.dim_);
    for (int64_t g = 0; g < group_; ++g)
      std::memcpy(s_.out + (token_ * shape.heads + head_ * group_ + g) * shape.head_dim, out + g * m_.dim_,
                  static_cast<size_t>(shape.head_dim) * sizeof(float));
    return true;
  }

 private:
  struct Entry {
    int32_t page;
    uint32_t mask;  // of its lanes
  };
  static constexpr uint32_t kAll = 0xffffu;
  static int64_t over(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

  // Positions from..to - 1.
  void list(int64_t from, int64_t to) {
    for (int64_t page = from / kPage; page * kPage < to; ++page) {
      const int64_t begin = std::max<int64_t>(from - page * kPage, 0), end = std::min(to - page * kPage, kPage);
      entries_[count_++] = {static_cast<int32_t>(page), lanes(begin, end)};
    }
  }

  // What the windows of the layer and of the rules leave, sinks first.
  void list_window() {
    const KvRules& rules = m_.rules_;
    int64_t first = s_.window ? std::max<int64_t>(0, last_ - s_.window) : 0;
    if (rules.window && last_ > rules.window + first) {
      const int64_t behind = last_ - rules.window;  // the first position of the window
      list(first, std::max(first, std::min(rules.sinks, behind)));
      sink_entries_ = count_;
      first = behind;
    }
    list(first, last_);
  }

  // Keeps the pages that may weigh most: the largest score of each head that the bounds of a page allow, as weights.
  void choose(KvHeads& heads, const float* queries, float* scores, float* masses) {
    const int64_t wanted = over(m_.rules_.chosen, kPage);
    if (count_ <= wanted) return;
    const int64_t whole = last_ / kPage;  // pages that have bounds
    const int64_t blocks = over(whole, kPage), used = blocks * kPage;
    for (int64_t b = 0; b < blocks; ++b) pages_[b] = m_.bound_page(s_.layer, head_, b);
    m_.kernels_.scores(bound_type(m_.rules_.type), heads.of_bounds(queries), pages_, blocks, scores, used);
    std::fill_n(masses, used, 0.0f);
    const int64_t first = entries_[0].page;
    for (int64_t g = 0; g < group_; ++g) {
      float* const own = scores + g * used;
      for (int64_t p = 0; p < used; ++p)
        if (p < first || p >= whole) own[p] = -std::numeric_limits<float>::infinity();
      if (s_.cap != 0.0f) m_.kernels_.cap(own, used, s_.cap);
      const float factor = 1.0f / m_.kernels_.weigh(own, used);
      for (int64_t p = 0; p < used; ++p) masses[p] += own[p] * factor;
    }
    const int64_t latest = std::min(kLatest, wanted), chosen = wanted - latest, others = count_ - latest;
    float limit = std::numeric_limits<float>::infinity();
    if (chosen) limit = limit_of(masses + first, others, chosen);
    // Pages of equal mass: the first of them.
    int64_t equal = chosen, kept = 0;
    for (int64_t i = 0; i < others; ++i) equal -= masses[first + i] > limit;
    for (int64_t i = 0; i < count_; ++i) {
      const bool is_late = i >= others;
      const float mass = is_late ? 0.0f : masses[first + i];
      if (is_late || mass > limit || (mass == limit && equal-- > 0)) entries_[kept++] = entries_[i];
    }
    count_ = kept;
  }

  void see(const KvQueries& queries, int64_t from, int64_t to, float* scores, int64_t stride) {
    for (int64_t i = from; i < to; ++i) pages_[i] = m_.key_page(s_.layer, head_, entries_[i].page);
    m_.kernels_.scores(m_.rules_.type, queries, pages_ + from, to - from, scores + from * kPage, stride);
  }

  void hide(float* scores) const {
    for (int64_t i = 0; i < count_; ++i)
      if (entries_[i].mask != kAll)
        for (int64_t lane = 0; lane < kPage; ++lane)
          if (!(entries_[i].mask >> lane & 1)) scores[i * kPage + lane] = -std::numeric_limits<float>::infinity();
  }

  const KvMemory& m_;
  const KvStep& s_;
  int64_t token_, head_, group_, last_;
  Entry* entries_ = nullptr;
  const char** pages_ = nullptr;
  int64_t count_ = 0, sink_entries_ = 0;
};

void KvMemory::attend(const KvStep& step, int num_threads) const {
  num_threads = usable_threads(num_threads);
  if (step.count >= kTiled) return attend_tiles(*this, step, num_threads);
  const int64_t work = step.count * shape_.heads * dim_ * (step.position + step.count);
  run_tasks(step.count * shape_.kv_heads, work < kWorthThreads ? 1 : num_threads, [&](int64_t i) {
    return KvToken(*this, step, i % step.count, i / step.count).run();
  });
}

}  // namespace gossamer
