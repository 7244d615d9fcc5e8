// SPDX-License-Identifier: Apache-2.0
// A Llama-type decoder as one native call: some tokens of one sequence through all layers, from their
// numbers to logits. RMSNorm, rotated halves, grouped queries over a cache of keys and values, SwiGLU.
// Weights are packed ones of any family; a layer that has two runs the second for many tokens.
#pragma once
#include <cstdint>
#include <vector>

#include "gossamer/big_alloc.hpp"
#include "gossamer/decoder_math.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

struct DecoderShape {
  int64_t width, heads, kv_heads, head_dim, ffn, vocab, context;
  float eps;

  int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
};

// Owned by whoever builds the decoder; it must outlive it.
struct DecoderLinear {
  const PackedWeight* few = nullptr;
  const PackedWeight* many = nullptr;  // may be null
  std::vector<float> bias;             // empty or [rows]
};

struct DecoderLayer {
  DecoderLinear qkv, out, gate_up, down;  // rows of queries, keys, values; of gate, up
  std::vector<float> attention_norm, ffn_norm;
};

struct Decoder {
  DecoderShape shape{};
  const DecoderMath* math = nullptr;
  const PackedWeight* embedding = nullptr;  // can_read_rows
  DecoderLinear head;
  std::vector<float> final_norm;
  std::vector<float> cosines, sines;  // [context][head_dim / 2]
  std::vector<DecoderLayer> layers;
};

// Keys and values of one sequence, and the activations of a step. One call at a time.
class DecoderSession {
 public:
  // Tokens that go through the layers together.
  static constexpr int64_t kChunk = 64;

  // Throws std::bad_alloc.
  explicit DecoderSession(const Decoder& decoder);

  // Appends `count` tokens, which must fit the context. logits: [vocab] of the last one, or, with
  // `all`, [count][vocab]. May throw std::bad_alloc; the session is then as it was.
  void step(const int32_t* ids, int64_t count, bool all, float* logits, int num_threads);

  int64_t length() const { return length_; }
  // Forgets everything behind the first `length` tokens.
  void truncate(int64_t length) { length_ = length; }
  size_t cache_bytes() const { return (keys_.size() + values_.size()) * sizeof(float); }

 private:
  void chunk(const int32_t* ids, int64_t count, int64_t position, int num_threads);
  void attend(int64_t layer, int64_t count, int64_t position, int num_threads);
  void logits_of(int64_t first, int64_t count, float* logits, int num_threads);
  void linear(const DecoderLinear& weight, const BigVector<float>& x, int64_t tokens, float* y, int num_threads);

  const Decoder& decoder_;
  int64_t length_ = 0, padded_dim_, padded_context_;
  BigVector<float> keys_, values_;
  BigVector<float> hidden_, normed_, qkv_, attended_, gate_up_, gated_, added_;
};

}  // namespace gossamer
