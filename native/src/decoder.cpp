// SPDX-License-Identifier: Apache-2.0
#include "gossamer/decoder.hpp"

#include <algorithm>
#include <cmath>

#include "gossamer/fork.hpp"

namespace gossamer {
namespace {

// How a layer turns heads at a position: by the tables, and behind their end by the angles of the second position.
class DecoderAngles {
 public:
  DecoderAngles(const Decoder& decoder, const DecoderLayer& layer, int64_t position) : math_(*decoder.math) {
    if (layer.rotation < 0) return;
    const DecoderRotation& by = decoder.rotations[static_cast<size_t>(layer.rotation)];
    pairs_ = by.pairs;
    if ((position + 1) * pairs_ <= static_cast<int64_t>(by.cosines.size())) {
      cosines_ = by.cosines.data() + position * pairs_;
      sines_ = by.sines.data() + position * pairs_;
      return;
    }
    own_.resize(static_cast<size_t>(2 * pairs_));
    for (int64_t i = 0; i < pairs_; ++i) {
      const double cosine = by.cosines[static_cast<size_t>(pairs_ + i)], sine = by.sines[static_cast<size_t>(pairs_ + i)];
      const double angle = std::atan2(sine, cosine) * static_cast<double>(position), size = std::hypot(sine, cosine);
      own_[static_cast<size_t>(i)] = static_cast<float>(std::cos(angle) * size);
      own_[static_cast<size_t>(pairs_ + i)] = static_cast<float>(std::sin(angle) * size);
    }
    cosines_ = own_.data();
    sines_ = own_.data() + pairs_;
  }
  void turn(const float* head, int64_t dim, float scale, float* y) const {
    math_.rotate(head, dim, pairs_, cosines_, sines_, scale, y);
  }

 private:
  const DecoderMath& math_;
  int64_t pairs_ = 0;
  const float *cosines_ = nullptr, *sines_ = nullptr;
  std::vector<float> own_;
};

}  // namespace

const DecoderMath& decoder_math(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::decoder_math, avx2::decoder_math, avx512::decoder_math);
#else
  return (void)isa, reference::decoder_math;
#endif
}

DecoderSession::DecoderSession(const Decoder& decoder, const KvRules& rules)
    : decoder_(decoder),
      kv_({static_cast<int64_t>(decoder.layers.size()), decoder.shape.heads, decoder.shape.kv_heads,
           decoder.shape.head_dim, decoder.shape.context},
          rules, decoder.isa) {
  const DecoderShape& shape = decoder.shape;
  const int64_t tokens = std::min(kChunk, shape.context);
  hidden_.resize(static_cast<size_t>(tokens * shape.width));
  normed_.resize(hidden_.size());
  added_.resize(hidden_.size());
  qkv_.resize(static_cast<size_t>(tokens * shape.qkv_rows()));
  attended_.resize(static_cast<size_t>(tokens * shape.heads * shape.head_dim));
  gate_up_.resize(static_cast<size_t>(tokens * (decoder.rules.gated ? 2 : 1) * shape.ffn));
  gated_.resize(static_cast<size_t>(tokens * shape.ffn));
  // What pads a head stays zero.
  queries_.assign(static_cast<size_t>(std::min(tokens, kAttended) * shape.heads * kv_.dim()), 0.0f);
  if (rules.sinks) sink_queries_.assign(queries_.size(), 0.0f);
}

void DecoderSession::truncate(int64_t length) {
  kv_.truncate(length);
  length_ = length;
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
    if (norm.rectified)
      for (int64_t k = 0; k < n; ++k) y[k] = y[k] < 0.0f ? 0.0f : y[k];  // keeps NaN
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
    for (int64_t first = 0; first < count; first += kAttended)
      attend(static_cast<int64_t>(i), first, std::min(kAttended, count - first), position + first, num_threads);
    layer.out.run(attended_.data(), count, added_.data(), num_threads);
    const float* x = rules.parallel ? read(layer.ffn_in) : nullptr;
    // Without a norm of its own it reads the stream, which is about to change.
    if (x == hidden_.data()) x = std::copy_n(x, count * shape.width, normed_.data()) - count * shape.width;
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
  if (layer.neurons && count <= kFewNeurons) {
    for (int64_t t = 0; t < count; ++t) {
      float* y = added_.data() + t * shape.width;
      layer.neurons->run(x + t * shape.width, y, num_threads);
      if (!layer.down.bias.empty()) decoder_.math->add(layer.down.bias.data(), shape.width, 1.0f, y);
    }
    return;
  }
  layer.gate_up.run(x, count, gate_up_.data(), num_threads);
  const int64_t rows = rules.gated ? 2 * shape.ffn : shape.ffn;
  for (int64_t t = 0; t < count; ++t) {
    float* gate = gate_up_.data() + t * rows;
    if (layer.shift != 0.0f || layer.threshold != 0.0f)
      for (int64_t k = 0; k < shape.ffn; ++k) gate[k] = gate[k] <= layer.threshold ? 0.0f : gate[k] - layer.shift;
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

void DecoderSession::attend(int64_t number, int64_t first, int64_t count, int64_t position, int num_threads) {
  const DecoderShape& shape = decoder_.shape;
  const DecoderLayer& layer = decoder_.layers[static_cast<size_t>(number)];
  const bool interleaved = decoder_.rules.interleaved;
  const int64_t dim = shape.head_dim;
  // Where a token's heads lie in its row of qkv.
  const int64_t step = interleaved ? 3 * dim : dim;
  const int64_t keys_at = interleaved ? dim : shape.heads * dim;
  const int64_t values_at = interleaved ? 2 * dim : (shape.heads + shape.kv_heads) * dim;
  const bool has_sinks = !sink_queries_.empty() && kv_.place(position + count - 1) < position + count - 1;
  for (int64_t t = 0; t < count; ++t) {
    const float* row = qkv_.data() + (first + t) * shape.qkv_rows();
    const DecoderAngles angles(decoder_, layer, position + t);
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      float key[1024];
      angles.turn(row + keys_at + head * step, dim, 1.0f, key);
      kv_.append(number, head, position + t, key, row + values_at + head * step);
    }
    const auto turn_queries = [&](const DecoderAngles& by, float* to) {
      for (int64_t head = 0; head < shape.heads; ++head)
        by.turn(row + head * step, dim, layer.scale, to + (t * shape.heads + head) * kv_.dim());
    };
    turn_queries(angles, queries_.data());
    if (has_sinks) turn_queries(DecoderAngles(decoder_, layer, kv_.place(position + t)), sink_queries_.data());
  }
  kv_.attend({number, count, position, layer.window, queries_.data(), has_sinks ? sink_queries_.data() : nullptr,
              decoder_.rules.score_cap, attended_.data() + first * shape.heads * dim},
             num_threads);
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
