// SPDX-License-Identifier: Apache-2.0
// Where keys and values lie, how they become codes, and what a page can score at most.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "code_rows.hpp"
#include "kv.hpp"

namespace gossamer {
namespace {

int64_t over(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

struct Sizes {
  int64_t dim, page_bytes, pages, sink_pages, ring, bound_bytes, bound_pages;

  Sizes(const KvShape& shape, const KvRules& rules) {
    dim = over(shape.head_dim, kHeadDimUnit) * kHeadDimUnit;
    page_bytes = gossamer::page_bytes(rules.type, dim);
    pages = over(shape.context, kPage);
    sink_pages = ring = 0;
    if (rules.window) {
      // A tile of tokens is appended before the first of them attends.
      const int64_t needed = over(rules.window + kTile, kPage) + 2;
      const int64_t sinks = over(rules.sinks, kPage);
      if (sinks + needed < pages) sink_pages = sinks, ring = needed, pages = sinks + needed;
    }
    bound_bytes = rules.chosen ? gossamer::page_bytes(bound_type(rules.type), 2 * dim) : 0;
    bound_pages = rules.chosen ? over(pages, kPage) : 0;
  }
  size_t of(const KvShape& shape, int64_t count, int64_t bytes) const {
    return static_cast<size_t>(shape.layers * shape.kv_heads * count) * static_cast<size_t>(bytes);
  }
};

// All numbers of a page become 0.
void clear(KvType type, int64_t dim, int code_of_0, char* page) {
  std::memset(page, 0, static_cast<size_t>(page_bytes(type, dim)));
  if (type != KvType::fp32) std::memset(page, code_of_0, static_cast<size_t>(codes_bytes(type, dim)));
}
void clear_keys(KvType type, int64_t dim, char* page) { clear(type, dim, type == KvType::int4 ? 0x88 : 128, page); }
void clear_values(KvType type, int64_t dim, char* page) { clear(type, dim, type == KvType::int4 ? 0x88 : 0, page); }

}  // namespace

const KvKernels& kv_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  static const bool vnni = has_extension("avx512vnni");
  if (isa == Isa::avx512 && vnni) return avx512vnni::kv_kernels;
  return pick(isa, reference::kv_kernels, avx2::kv_kernels, avx512::kv_kernels);
#else
  return (void)isa, reference::kv_kernels;
#endif
}

KvMemory::KvMemory(const KvShape& shape, const KvRules& rules, Isa isa)
    : shape_(shape),
      rules_(rules),
      kernels_(kv_kernels(isa)),
      tiles_(attention_kernels_of(isa)),
      dim_(Sizes(shape, rules).dim),
      page_bytes_(Sizes(shape, rules).page_bytes),
      pages_(Sizes(shape, rules).pages),
      sink_pages_(Sizes(shape, rules).sink_pages),
      ring_(Sizes(shape, rules).ring),
      bound_bytes_(Sizes(shape, rules).bound_bytes),
      bound_pages_(Sizes(shape, rules).bound_pages),
      keys_(Sizes(shape, rules).of(shape, pages_, page_bytes_)),
      values_(keys_.size()),
      bounds_(Sizes(shape, rules).of(shape, bound_pages_, bound_bytes_)) {}

size_t KvMemory::bytes_of(const KvShape& shape, const KvRules& rules) {
  const Sizes sizes(shape, rules);
  return 2 * sizes.of(shape, sizes.pages, sizes.page_bytes) + sizes.of(shape, sizes.bound_pages, sizes.bound_bytes);
}

void KvMemory::append(int64_t layer, int64_t head, int64_t position, const float* key, const float* value) {
  const int64_t page = position / kPage, lane = position % kPage, n = shape_.head_dim;
  char* const keys = key_page(layer, head, page);
  char* const values = value_page(layer, head, page);
  if (lane == 0) {
    // Lanes that hold nothing yet, and what pads a head, must be numbers.
    clear_keys(rules_.type, dim_, keys);
    clear_values(rules_.type, dim_, values);
    if (ring_ && page >= sink_pages_) alive_from_ = std::max(alive_from_, page - ring_ + 1);
  }
  if (rules_.type == KvType::fp32) {
    float* const to = reinterpret_cast<float*>(keys) + lane;
    for (int64_t d = 0; d < n; ++d) to[d * kPage] = key[d];
    std::memcpy(reinterpret_cast<float*>(values) + lane * dim_, value, static_cast<size_t>(n) * sizeof(float));
  } else if (spreads()) {
    float rows[2][kMostDim] = {};
    std::copy_n(key, n, rows[0]);
    std::copy_n(value, n, rows[1]);
    for (float* row : rows) kernels_.spread(row, 1, dim_);
    store_key_fours(rows[0], dim_, lane, keys);
    store_value_fours(rows[1], dim_, lane, values);
  } else {
    store_key_codes(key, n, dim_, lane, keys);
    const float scale = scale_of(value, n);
    reinterpret_cast<float*>(values + codes_bytes(KvType::int8, dim_))[lane] = scale;
    auto* const to = reinterpret_cast<int8_t*>(values) + lane / 4 * dim_ * 4 + lane % 4;
    for (int64_t d = 0; d < n; ++d) to[d * 4] = code_of(value[d], scale);
  }
  if (lane == kPage - 1 && chooses(layer)) bound(layer, head, page);
}

// The least and the largest number of each column of a page's keys.
void KvMemory::bound(int64_t layer, int64_t head, int64_t page) {
  const int64_t n = 2 * dim_;
  std::vector<float> rows(static_cast<size_t>(kPage * dim_)), limits(static_cast<size_t>(n));
  kernels_.key_rows(rules_.type, key_page(layer, head, page), dim_, rows.data());
  if (spreads()) kernels_.spread(rows.data(), kPage, dim_);
  float* const least = limits.data();
  float* const most = least + dim_;
  std::copy_n(rows.data(), dim_, least);
  std::copy_n(rows.data(), dim_, most);
  for (int64_t r = 1; r < kPage; ++r)
    for (int64_t d = 0; d < dim_; ++d) {
      const float v = rows[static_cast<size_t>(r * dim_ + d)];
      least[d] = std::min(least[d], v);
      most[d] = std::max(most[d], v);
    }
  const int64_t at = slot(page), lane = at % kPage;
  char* const to = bound_page(layer, head, at / kPage);
  if (lane == 0) clear_keys(bound_type(rules_.type), n, to);
  if (rules_.type == KvType::fp32)
    for (int64_t d = 0; d < n; ++d) reinterpret_cast<float*>(to)[d * kPage + lane] = limits[static_cast<size_t>(d)];
  else
    store_key_codes(limits.data(), n, n, lane, to);
}

bool KvMemory::can_truncate(int64_t length) const {
  if (!ring_ || length == 0) return true;
  const int64_t first = std::max<int64_t>(0, length + 1 - rules_.window) / kPage;
  return first >= alive_from_ || alive_from_ == 0;
}

void KvMemory::truncate(int64_t length) {
  if (length == 0) alive_from_ = 0;
}

}  // namespace gossamer
