// SPDX-License-Identifier: Apache-2.0
// A decoder as one native call: some tokens of one sequence through all layers, from their numbers to
// logits. What models differ in are switches (`DecoderRules`, and those of a layer); with none of them
// it is a Llama: RMSNorm, rotated halves, grouped queries over a cache of keys and values, SwiGLU.
// Weights are packed ones of any family; a layer that has two runs the second for many tokens.
#pragma once
#include <cstdint>
#include <vector>

#include "gossamer/big_alloc.hpp"
#include "gossamer/decoder_experts.hpp"
#include "gossamer/decoder_linear.hpp"
#include "gossamer/decoder_math.hpp"
#include "gossamer/neuron_block.hpp"
#include "gossamer/packed_weight.hpp"
#include "kv/kv.hpp"

namespace gossamer {

struct DecoderShape {
  int64_t width, heads, kv_heads, head_dim, ffn, vocab, context;

  int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
};

// What holds for all layers.
struct DecoderRules {
  DecoderActivation activation = DecoderActivation::silu;
  bool layer_norm = false;   // norms subtract the mean and have a bias
  bool gated = true;         // rows of gate and up; else of up alone
  bool parallel = false;     // the feed-forward part reads what attention reads, not its sum
  bool interleaved = false;  // rows of qkv: query, key and value of one head, then of the next
  float embedding_scale = 1.0f, residual_scale = 1.0f, logits_scale = 1.0f;
  float score_cap = 0.0f, logits_cap = 0.0f;  // 0: none
};

struct DecoderNorm {
  std::vector<float> weight, bias;  // no weight: there is no such norm
  float eps = 0.0f;
  bool rectified = false;  // a ReLU behind it

  explicit operator bool() const { return !weight.empty(); }
};

// Angles of every position for the first 2 * pairs columns of a head.
struct DecoderRotation {
  int64_t pairs = 0;
  std::vector<float> cosines, sines;  // [positions][pairs]
};

struct DecoderLayer {
  DecoderLinear qkv, out, gate_up, down;       // rows of queries, keys, values; of gate, up
  DecoderExperts experts;                      // the feed-forward part, if there are any
  // The feed-forward part of few tokens, if its neurons are mostly zero; gate_up and down run the others.
  const NeuronBlock* neurons = nullptr;
  float shift = 0.0f, threshold = 0.0f;        // of relu: v - shift where v is above the threshold
  DecoderNorm attention_in, attention_out;     // of what attention reads, and of what it gives
  DecoderNorm ffn_in, ffn_out;                 // the same of the feed-forward part
  DecoderNorm query, key;                      // of every head, or of all heads as one
  int64_t rotation = -1;                       // number in `Decoder::rotations`; -1: heads are not turned
  int64_t window = 0;                          // positions that are attended to, its own included; 0: all
  float scale = 1.0f;                          // of the queries
};

struct Decoder {
  DecoderShape shape{};
  DecoderRules rules{};
  Isa isa = Isa::reference;
  const DecoderMath* math = nullptr;
  const PackedWeight* embedding = nullptr;  // can_read_rows
  DecoderLinear head;
  DecoderNorm final_norm;
  std::vector<float> positions;  // empty, or [positions][width], added to the embeddings
  std::vector<DecoderRotation> rotations;
  std::vector<DecoderLayer> layers;
};

// Keys and values of one sequence, and the activations of a step. One call at a time.
class DecoderSession {
 public:
  // Tokens that go through the layers together, and those that attend together.
  static constexpr int64_t kChunk = 128, kAttended = 64;

  // Throws std::bad_alloc.
  DecoderSession(const Decoder& decoder, const KvRules& rules);

  // Appends `count` tokens, which must fit the context. logits: [vocab] of the last one, or, with
  // `all`, [count][vocab]. May throw std::bad_alloc; the session is then as it was.
  void step(const int32_t* ids, int64_t count, bool all, float* logits, int num_threads);

  int64_t length() const { return length_; }
  // Forgets everything behind the first `length` tokens. What the next one attends to must not be gone.
  bool can_truncate(int64_t length) const { return kv_.can_truncate(length); }
  void truncate(int64_t length);
  size_t cache_bytes() const { return kv_.bytes(); }

 private:
  void embed(const int32_t* ids, int64_t count, int64_t position);
  void chunk(const int32_t* ids, int64_t count, int64_t position, int num_threads);
  void norm_heads(const DecoderLayer& layer, int64_t count);
  // Tokens `first` and on of a chunk.
  void attend(int64_t layer, int64_t first, int64_t count, int64_t position, int num_threads);
  void logits_of(int64_t first, int64_t count, float* logits, int num_threads);
  // `count` vectors of n floats; y may be x.
  void norm(const DecoderNorm& norm, const float* x, int64_t count, int64_t n, float* y) const;
  // Tokens that go through neurons one by one: those of more are different ones.
  static constexpr int64_t kFewNeurons = 2;
  // x is what the feed-forward part reads; the result is in added_.
  void feed_forward(const DecoderLayer& layer, const float* x, int64_t count, int num_threads);

  const Decoder& decoder_;
  int64_t length_ = 0;
  KvMemory kv_;
  BigVector<float> queries_, sink_queries_;
  ExpertsRun experts_;
  BigVector<float> hidden_, normed_, qkv_, attended_, gate_up_, gated_, added_;
};

}  // namespace gossamer
