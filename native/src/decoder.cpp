// SPDX-License-Identifier: Apache-2.0
#include "gossamer/decoder.hpp"

#include <algorithm>
#include <cstring>

#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// Below this many multiply-adds attention is done before another thread has woken up.
constexpr int64_t kWorthThreads = 1 << 15;

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
  gate_up_.resize(static_cast<size_t>(tokens * (decoder.rules.gated ? 2 : 1) * shape.ffn));
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

void DecoderSession::norm(const DecoderNorm& norm, const float* x, int64_t count, int64_t n, float* y) const {
  const DecoderMath& math = *decoder_.math;
  for (int64_t t = 0; t < count; ++t, x += n, y += n) {
    if (decoder_.rules.layer_norm)
      math.layer_norm(x, norm.weight.data(), norm.bias.data(), n, norm.eps, y);
    else
      math.rms_norm(x, norm.weight.data(), n, norm.eps, y);
  }
}

void DecoderSession::embed(const int32_t* ids, int64_t count, int64_t position) {
  const int64_t width = decoder_.shape.width;
  const DecoderMath& math = *decoder_.math;
  for (int64_t t = 0; t < count; ++t) decoder_.embedding->read_row(ids[t], hidden_.data() + t * width);
  if (decoder_.rules.embedding_scale != 1.0f)
    math.scale_and_cap(hidden_.data(), count * width, decoder_.rules.embedding_scale, 0.0f);
  if (!decoder_.positions.empty())
    math.add(decoder_.positions.data() + position * width, count * width, 1.0f, hidden_.data());
}

void DecoderSession::chunk(const int32_t* ids, int64_t count, int64_t position, int num_threads) {
  const DecoderShape& shape = decoder_.shape;
  const DecoderRules& rules = decoder_.rules;
  const DecoderMath& math = *decoder_.math;
  // What a part of a layer reads: the stream, with its norm if there is one.
  const auto read = [&](const DecoderNorm& in) -> const float* {
    if (!in) return hidden_.data();
    norm(in, hidden_.data(), count, shape.width, normed_.data());
    return normed_.data();
  };
  // What it gives is added to the stream.
  const auto give = [&](const DecoderNorm& out) {
    if (out) norm(out, added_.data(), count, shape.width, added_.data());
    math.add(added_.data(), count * shape.width, rules.residual_scale, hidden_.data());
  };
  embed(ids, count, position);
  for (size_t i = 0; i < decoder_.layers.size(); ++i) {
    const DecoderLayer& layer = decoder_.layers[i];
    layer.qkv.run(read(layer.attention_in), count, qkv_.data(), num_threads);
    norm_heads(layer, count);
    attend(static_cast<int64_t>(i), count, position, num_threads);
    layer.out.run(attended_.data(), count, added_.data(), num_threads);
    const float* x = rules.parallel ? read(layer.ffn_in) : nullptr;
    give(layer.attention_out);
    if (!x) x = read(layer.ffn_in);
    feed_forward(layer, x, count, num_threads);
    give(layer.ffn_out);
  }
}

void DecoderSession::feed_forward(const DecoderLayer& layer, const float* x, int64_t count, int num_threads) {
  const DecoderShape& shape = decoder_.shape;
  const DecoderRules& rules = decoder_.rules;
  if (!layer.experts.is_empty())
    return experts_.run(layer.experts, *decoder_.math, rules.activation, x, count, shape.width, added_.data(),
                        num_threads);
  layer.gate_up.run(x, count, gate_up_.data(), num_threads);
  const int64_t rows = rules.gated ? 2 * shape.ffn : shape.ffn;
  for (int64_t t = 0; t < count; ++t) {
    const float* gate = gate_up_.data() + t * rows;
    decoder_.math->gate(rules.activation, gate, rules.gated ? gate + shape.ffn : nullptr, shape.ffn,
                        gated_.data() + t * shape.ffn);
  }
  layer.down.run(gated_.data(), count, added_.data(), num_threads);
}

void DecoderSession::norm_heads(const DecoderLayer& layer, int64_t count) {
  const DecoderShape& shape = decoder_.shape;
  const auto all = [&](const DecoderNorm& of, float* first, int64_t heads) {
    if (!of) return;
    const auto n = static_cast<int64_t>(of.weight.size());
    norm(of, first, heads * shape.head_dim / n, n, first);
  };
  for (int64_t t = 0; t < count; ++t) {
    float* queries = qkv_.data() + t * shape.qkv_rows();
    all(layer.query, queries, shape.heads);
    all(layer.key, queries + shape.heads * shape.head_dim, shape.kv_heads);
  }
}

void DecoderSession::attend(int64_t number, int64_t count, int64_t position, int num_threads) {
  const DecoderShape& shape = decoder_.shape;
  const DecoderLayer& layer = decoder_.layers[static_cast<size_t>(number)];
  const DecoderMath& math = *decoder_.math;
  const bool interleaved = decoder_.rules.interleaved;
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads;
  const int64_t head_floats = padded_context_ * padded_dim_;
  // Where a token's heads lie in its row of qkv.
  const int64_t step = interleaved ? 3 * dim : dim;
  const int64_t keys_at = interleaved ? dim : shape.heads * dim;
  const int64_t values_at = interleaved ? 2 * dim : (shape.heads + shape.kv_heads) * dim;
  const auto row = [&](int64_t t) { return qkv_.data() + t * shape.qkv_rows(); };
  const auto turn = [&](const float* head, int64_t t, float scale, float* y) {
    if (layer.rotation < 0) return math.rotate(head, dim, 0, nullptr, nullptr, scale, y);
    const DecoderRotation& by = decoder_.rotations[static_cast<size_t>(layer.rotation)];
    const int64_t at = (position + t) * by.pairs;
    math.rotate(head, dim, by.pairs, by.cosines.data() + at, by.sines.data() + at, scale, y);
  };
  const auto remember = [&](int64_t head, int64_t t) {
    const int64_t at = position + t, begin = (number * shape.kv_heads + head) * head_floats;
    float* keys = keys_.data() + begin + at / kKeyBlock * kKeyBlock * padded_dim_ + at % kKeyBlock;
    float turned[1024];
    turn(row(t) + keys_at + head * step, t, 1.0f, turned);
    for (int64_t d = 0; d < dim; ++d) keys[d * kKeyBlock] = turned[d];
    std::memcpy(values_.data() + begin + at * padded_dim_, row(t) + values_at + head * step,
                static_cast<size_t>(dim) * sizeof(float));
  };
  const auto attend_one = [&](int64_t head, int64_t t) {
    const int64_t last = position + t + 1, first = layer.window ? std::max<int64_t>(0, last - layer.window) : 0;
    const int64_t whole = first / kKeyBlock * kKeyBlock, positions = last - whole;
    const int64_t begin = (number * shape.kv_heads + head) * head_floats + whole * padded_dim_;
    const int64_t queries = group * padded_dim_;
    float* scratch = static_cast<float*>(
        thread_scratch(static_cast<size_t>(2 * queries + group * to_multiple(positions, kKeyBlock)) * sizeof(float)));
    if (!scratch) return false;
    std::fill_n(scratch, queries, 0.0f);
    for (int64_t g = 0; g < group; ++g)
      turn(row(t) + (head * group + g) * step, t, layer.scale, scratch + g * padded_dim_);
    float* out = scratch + queries;
    math.attend({scratch, keys_.data() + begin, values_.data() + begin, group, padded_dim_, positions, first - whole,
                 decoder_.rules.score_cap, scratch + 2 * queries, out});
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
  const DecoderRules& rules = decoder_.rules;
  norm(decoder_.final_norm, hidden_.data() + first * shape.width, count, shape.width, normed_.data());
  decoder_.head.run(normed_.data(), count, logits, num_threads);
  if (rules.logits_scale != 1.0f || rules.logits_cap != 0.0f)
    decoder_.math->scale_and_cap(logits, count * shape.vocab, rules.logits_scale, rules.logits_cap);
}

}  // namespace gossamer
