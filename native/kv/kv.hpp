// SPDX-License-Identifier: Apache-2.0
// Keys and values of one sequence of a decoder, and attention over them.
//
// Sixteen positions are a page. Its keys lie turned, so that a lane is a score; its values are rows. Pages are floats,
// or codes of 8 or 4 bits with a scale for each token and head; queries and weights then become codes of 8 bits too, and
// products are sums of integers. Four bits hold a head after a Hadamard matrix, which spreads its few large columns over
// all: queries go through it too, and results back. Which pages a token reads is a list, so that zeros of attention are pages that are not on it:
//  - a window, of the model or asked for; with sinks, memory is a ring and the text has no end,
//  - pages chosen for each token by what their keys can score at most,
//  - in prompts, tiles of 64 x 64 chosen for each head from the scores of a few of its queries.
// Prompts run on the tiles of attention/, pages as rows of floats.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention.hpp"
#include "gossamer/big_alloc.hpp"
#include "gossamer/cpu.hpp"

namespace gossamer {

constexpr int64_t kPage = 16;
constexpr int64_t kPagesOfTile = kTile / kPage;
constexpr int64_t kHeadDimUnit = 16;  // heads are padded to a multiple of it

enum class KvType : int { fp32 = 0, int8 = 1, int4 = 2 };

// Which keys a token attends to, besides the window of its layer.
struct KvRules {
  KvType type = KvType::fp32;
  int64_t sinks = 0, window = 0;  // the first and the last positions, and no others; window 0: all
  int64_t chosen = 0;             // positions in the pages that a token reads; 0: all
  int64_t whole_layers = 0;       // first layers that read all pages
  double mass = 1.0;              // of the weights of a prompt's tokens, what kept tiles hold at least; 1: all tiles
};

struct KvShape {
  int64_t layers, heads, kv_heads, head_dim, context;
};

// A page of keys: floats [dim][16]; or codes [dim / 4][16][4], 128 for 0, then 16 scales.
// A page of values: floats [16][dim]; or signed codes [4][dim][4], four positions side by side, then 16 scales.
// Codes of 4 bits, 8 for 0, lie the same way, two fours of bytes in one: the first in the low halves.
inline int64_t codes_bytes(KvType type, int64_t dim) { return type == KvType::int4 ? kPage * dim / 2 : kPage * dim; }
inline int64_t page_bytes(KvType type, int64_t dim) {
  return type == KvType::fp32 ? kPage * dim * 4 : codes_bytes(type, dim) + kPage * 4;
}
inline const float* scales_of(KvType type, const char* page, int64_t dim) {
  return reinterpret_cast<const float*>(page + codes_bytes(type, dim));
}
// What bounds of pages are stored in: they are of the heads as they were.
inline KvType bound_type(KvType type) { return type == KvType::fp32 ? type : KvType::int8; }

// Query heads that share keys.
struct KvQueries {
  int64_t group, dim;    // dim: padded
  const float* floats;   // [group][dim], scaled
  const int8_t* codes;   // [group][dim]; int8 only
  const float* scales;   // [group] of the codes
  const int32_t* offsets;  // [group], what the zero of the keys adds
};

// Allocate and throw nothing.
struct KvKernels {
  // scores[g * stride + 16 * i + lane] of the pages of keys at pages[i].
  void (*scores)(KvType type, const KvQueries& q, const char* const* pages, int64_t count, float* scores,
                 int64_t stride);
  // score = cap * tanh(score / cap)
  void (*cap)(float* scores, int64_t count, float cap);
  // Scores to weights that add up to the number returned; a multiple of 16 of them, -inf where there is no key.
  float (*weigh)(float* scores, int64_t count);
  // out[group][dim] = factors[g] * weights[g] times the pages of values at pages[i]. bytes: scratch of
  // group * count * (16 + 4).
  void (*values)(KvType type, int64_t group, int64_t dim, const char* const* pages, int64_t count,
                 const float* weights, int64_t stride, const float* factors, char* bytes, float* out);
  // Pages as rows of floats, [16][dim].
  void (*key_rows)(KvType type, const char* page, int64_t dim, float* rows);
  void (*value_rows)(KvType type, const char* page, int64_t dim, float* rows);
  // Rows of `dim` numbers times a Hadamard matrix of the largest power of two that divides dim; again, and they are back.
  void (*spread)(float* rows, int64_t count, int64_t dim);
};

namespace reference { extern const KvKernels kv_kernels; }
namespace avx2 { extern const KvKernels kv_kernels; }
namespace avx512 { extern const KvKernels kv_kernels; }
namespace avx512vnni { extern const KvKernels kv_kernels; }

const KvKernels& kv_kernels(Isa isa);

// Some tokens of one layer that attend; their keys and values have been appended.
struct KvStep {
  int64_t layer, count, position;
  int64_t window;             // of the layer; 0: all
  const float* queries;       // [count][heads][dim padded], scaled and turned
  const float* sink_queries;  // the same, turned by their place beside the sinks; null: that is their own
  float cap;
  float* out;                 // [count][heads * head_dim]

  const float* of_sinks() const { return sink_queries ? sink_queries : queries; }
};

// Unturned bytes that the system gives zeroed and touched by nobody until they are written.
class KvBytes {
 public:
  explicit KvBytes(size_t bytes) : bytes_(bytes), memory_(static_cast<char*>(big_alloc(bytes))) {}
  ~KvBytes() { big_free(memory_, bytes_); }
  KvBytes(const KvBytes&) = delete;
  KvBytes& operator=(const KvBytes&) = delete;
  char* data() const { return memory_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_;
  char* memory_;
};

class KvMemory {
 public:
  // From so many tokens on a step runs on tiles.
  static constexpr int64_t kTiled = 17;

  // Throws std::bad_alloc.
  KvMemory(const KvShape& shape, const KvRules& rules, Isa isa);

  int64_t dim() const { return dim_; }
  const KvShape& shape() const { return shape_; }
  const KvRules& rules() const { return rules_; }
  size_t bytes() const { return keys_.size() + values_.size() + bounds_.size(); }

  // At most 64 tokens after those that are held, before `attend` of the same layer.
  void append(int64_t layer, int64_t head, int64_t position, const float* key, const float* value);
  // Whether the tokens behind the first `length` can be forgotten; those before may be gone.
  bool can_truncate(int64_t length) const;
  void truncate(int64_t length);
  // May throw std::bad_alloc.
  void attend(const KvStep& step, int num_threads) const;
  // Where a query stands beside the sinks when it is at `position`.
  int64_t place(int64_t position) const {
    return position < rules_.sinks + rules_.window ? position : rules_.sinks + rules_.window - 1;
  }
  // Bytes of keys, values and bounds that a session of this kind takes.
  static size_t bytes_of(const KvShape& shape, const KvRules& rules);

 private:
  friend class KvToken;
  friend class KvTiles;

  int64_t slot(int64_t page) const {
    return page < sink_pages_ || !ring_ ? page : sink_pages_ + (page - sink_pages_) % ring_;
  }
  char* key_page(int64_t layer, int64_t head, int64_t page) const {
    return keys_.data() + ((layer * shape_.kv_heads + head) * pages_ + slot(page)) * page_bytes_;
  }
  char* value_page(int64_t layer, int64_t head, int64_t page) const {
    return values_.data() + ((layer * shape_.kv_heads + head) * pages_ + slot(page)) * page_bytes_;
  }
  // Bounds of sixteen pages, which lie as the keys of a page do: lane = page.
  char* bound_page(int64_t layer, int64_t head, int64_t number) const {
    return bounds_.data() + ((layer * shape_.kv_heads + head) * bound_pages_ + number) * bound_bytes_;
  }
  bool spreads() const { return rules_.type == KvType::int4; }
  bool chooses(int64_t layer) const { return rules_.chosen && layer >= rules_.whole_layers; }
  void bound(int64_t layer, int64_t head, int64_t page);

  KvShape shape_;
  KvRules rules_;
  const KvKernels& kernels_;
  const AttentionKernels& tiles_;
  int64_t dim_, page_bytes_, pages_, sink_pages_, ring_, bound_bytes_, bound_pages_;
  int64_t alive_from_ = 0;  // the first page behind the sinks that was not overwritten
  KvBytes keys_, values_, bounds_;
};

}  // namespace gossamer
