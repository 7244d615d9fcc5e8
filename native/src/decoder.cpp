// SPDX-License-Identifier: Apache-2.0
#include "gossamer/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// Below this many multiply-adds attention is done before another thread has woken up.
constexpr int64_t kWorthThreads = 1 << 15;
// From here on the layouts for many tokens are used, where a layer has them.
constexpr int64_t kManyTokens = 17;

int64_t to_multiple(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

const DecoderMath& decoder_math(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::decoder_math, avx2::decoder_math, avx512::decoder_math);
#else
  return (void)isa, reference::decoder_math;
#endif
}

DecoderSession::DecoderSession(const Decoder& decoder) : decoder_(decoder) {
  const DecoderShape& shape = decoder.shape;
  padded_dim_ = to_multiple(shape.head_dim, kHeadDimUnit);
  padded_context_ = to_multiple(shape.context, kKeyBlock);
  const auto cache = static_cast<size_t>(static_cast<int64_t>(decoder.layers.size()) * shape.kv_heads *
                                         padded_context_ * padded_dim_);
  keys_.assign(cache, 0.0f);
  values_.assign(cache, 0.0f);
  const int64_t tokens = std::min(kChunk, shape.context);
  hidden_.resize(static_cast<size_t>(tokens * shape.width));
  normed_.resize(hidden_.size());
  added_.resize(hidden_.size());
  qkv_.resize(static_cast<size_t>(tokens * shape.qkv_rows()));
  attended_.resize(static_cast<size_t>(tokens * shape.heads * shape.head_dim));
  gate_up_.resize(static_cast<size_t>(tokens * 2 * shape.ffn));
  gated_.resize(static_cast<size_t>(tokens * shape.ffn));
}

void DecoderSession::step(const int32_t* ids, int64_t count, bool all, float* logits, int num_threads) {
  num_threads = usable_threads(num_threads);
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t tokens = std::min(kChunk, count - done);
    chunk(ids + done, tokens, length_ + done, num_threads);
    if (all) logits_of(0, tokens, logits + done * decoder_.shape.vocab, num_threads);
    if (!all && done + tokens == count) logits_of(tokens - 1, 1, logits, num_threads);
  }
  length_ += count;
}

void DecoderSession::linear(const DecoderLinear& weight, const BigVector<float>& x, int64_t tokens, float* y,
                            int num_threads) {
  const PackedWeight& packed = weight.many && tokens >= kManyTokens ? *weight.many : *weight.few;
  packed.run({x.data(), tokens, packed.columns, y, packed.rows, weight.bias.empty() ? nullptr : weight.bias.data(),
              Activation::none},
             num_threads);
}

void DecoderSession::chunk(const int32_t* ids, int64_t count, int64_t position, int num_threads) {
  const DecoderShape& shape = decoder_.shape;
  const DecoderMath& math = *decoder_.math;
  const auto norm = [&](const std::vector<float>& weight) {
    for (int64_t t = 0; t < count; ++t)
      math.rms_norm(hidden_.data() + t * shape.width, weight.data(), shape.width, shape.eps,
                    normed_.data() + t * shape.width);
  };
  for (int64_t t = 0; t < count; ++t) decoder_.embedding->read_row(ids[t], hidden_.data() + t * shape.width);
  for (size_t i = 0; i < decoder_.layers.size(); ++i) {
    const DecoderLayer& layer = decoder_.layers[i];
    norm(layer.attention_norm);
    linear(layer.qkv, normed_, count, qkv_.data(), num_threads);
    attend(static_cast<int64_t>(i), count, position, num_threads);
    linear(layer.out, attended_, count, added_.data(), num_threads);
    math.add(added_.data(), count * shape.width, hidden_.data());
    norm(layer.ffn_norm);
    linear(layer.gate_up, normed_, count, gate_up_.data(), num_threads);
    for (int64_t t = 0; t < count; ++t) {
      const float* gate = gate_up_.data() + t * 2 * shape.ffn;
      math.gate(gate, gate + shape.ffn, shape.ffn, gated_.data() + t * shape.ffn);
    }
    linear(layer.down, gated_, count, added_.data(), num_threads);
    math.add(added_.data(), count * shape.width, hidden_.data());
  }
}

void DecoderSession::attend(int64_t layer, int64_t count, int64_t position, int num_threads) {
  const DecoderShape& shape = decoder_.shape;
  const DecoderMath& math = *decoder_.math;
  const int64_t dim = shape.head_dim, half = dim / 2, group = shape.heads / shape.kv_heads;
  const int64_t head_floats = padded_context_ * padded_dim_;
  const auto angles = [&](const std::vector<float>& table, int64_t t) { return table.data() + (position + t) * half; };
  const auto remember = [&](int64_t head, int64_t t) {
    const float* key = qkv_.data() + t * shape.qkv_rows() + (shape.heads + head) * dim;
    const int64_t at = position + t, begin = (layer * shape.kv_heads + head) * head_floats;
    float* keys = keys_.data() + begin + at / kKeyBlock * kKeyBlock * padded_dim_ + at % kKeyBlock;
    float turned[1024];
    math.rotate(key, dim, angles(decoder_.cosines, t), angles(decoder_.sines, t), 1.0f, turned);
    for (int64_t d = 0; d < dim; ++d) keys[d * kKeyBlock] = turned[d];
    std::memcpy(values_.data() + begin + at * padded_dim_, key + shape.kv_heads * dim,
                static_cast<size_t>(dim) * sizeof(float));
  };
  const auto attend_one = [&](int64_t head, int64_t t) {
    const int64_t positions = position + t + 1, begin = (layer * shape.kv_heads + head) * head_floats;
    const int64_t queries = group * padded_dim_;
    float* scratch = static_cast<float*>(
        thread_scratch(static_cast<size_t>(2 * queries + group * to_multiple(positions, kKeyBlock)) * sizeof(float)));
    if (!scratch) return false;
    std::fill_n(scratch, queries, 0.0f);
    for (int64_t g = 0; g < group; ++g)
      math.rotate(qkv_.data() + t * shape.qkv_rows() + (head * group + g) * dim, dim, angles(decoder_.cosines, t),
                  angles(decoder_.sines, t), 1.0f / std::sqrt(static_cast<float>(dim)), scratch + g * padded_dim_);
    float* out = scratch + queries;
    math.attend({scratch, keys_.data() + begin, values_.data() + begin, group, padded_dim_, positions,
                 scratch + 2 * queries, out});
    for (int64_t g = 0; g < group; ++g)
      std::memcpy(attended_.data() + (t * shape.heads + head * group + g) * dim, out + g * padded_dim_,
                  static_cast<size_t>(dim) * sizeof(float));
    return true;
  };
  for (int64_t t = 0; t < count; ++t)
    for (int64_t head = 0; head < shape.kv_heads; ++head) remember(head, t);
  const int64_t work = count * shape.heads * dim * (position + count);
  run_tasks(count * shape.kv_heads, work < kWorthThreads ? 1 : num_threads,
            [&](int64_t i) { return attend_one(i % shape.kv_heads, i / shape.kv_heads); });
}

void DecoderSession::logits_of(int64_t first, int64_t count, float* logits, int num_threads) {
  const DecoderShape& shape = decoder_.shape;
  for (int64_t t = 0; t < count; ++t)
    decoder_.math->rms_norm(hidden_.data() + (first + t) * shape.width, decoder_.final_norm.data(), shape.width,
                            shape.eps, normed_.data() + t * shape.width);
  linear(decoder_.head, normed_, count, logits, num_threads);
}

}  // namespace gossamer
