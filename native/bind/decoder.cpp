// SPDX-License-Identifier: Apache-2.0
// A decoder as Python builds it: a shape, then one layer after the other, then sessions. What it points
// to are Python objects, which it keeps alive.
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/decoder.hpp"

namespace gossamer::bind {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24, kMaxHeadDim = 1024;

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("decoder: " + what);
}

struct BoundDecoder {
  Decoder decoder;
  std::vector<nb::object> kept_alive;
  bool has_sessions = false;
  int64_t turned = kMaxSize;  // positions that all tables of angles have

  const PackedWeight* weight(const nb::object& object, int64_t rows, int64_t columns, const char* name) {
    const auto* packed = nb::cast<const PackedWeight*>(object);
    expect(packed && packed->rows == rows && packed->columns == columns,
           std::string(name) + " must be a packed weight of " + std::to_string(rows) + " x " + std::to_string(columns));
    kept_alive.push_back(object);
    return packed;
  }

  // `weights` is (few, many or None, bias or None).
  DecoderLinear linear(const nb::tuple& weights, int64_t rows, int64_t columns, const char* name) {
    expect(nb::len(weights) == 3, std::string(name) + " must be (few, many, bias)");
    DecoderLinear made;
    made.few = weight(weights[0], rows, columns, name);
    if (!weights[1].is_none()) made.many = weight(weights[1], rows, columns, name);
    if (!weights[2].is_none()) made.bias = vector(nb::cast<Values>(weights[2]), rows, name);
    return made;
  }

  static std::vector<float> vector(const Values& values, int64_t size, const char* name) {
    expect(static_cast<int64_t>(values.shape(0)) == size, std::string(name) + " must have " + std::to_string(size) + " entries");
    return {values.data(), values.data() + values.size()};
  }

  // `norm` is (weight, bias or None, eps, whether a ReLU is behind it), or None where there is no such norm.
  DecoderNorm norm(const nb::object& norm, int64_t size, const char* name) const {
    DecoderNorm made;
    if (norm.is_none()) return made;
    const auto parts = nb::cast<nb::tuple>(norm);
    expect(nb::len(parts) == 4, std::string(name) + " must be (weight, bias, eps, rectified)");
    made.weight = vector(nb::cast<Values>(parts[0]), size, name);
    expect(parts[1].is_none() != decoder.rules.layer_norm, std::string(name) + " has a bias if it is a layer norm");
    if (decoder.rules.layer_norm) made.bias = vector(nb::cast<Values>(parts[1]), size, name);
    made.eps = nb::cast<float>(parts[2]);
    made.rectified = nb::cast<bool>(parts[3]);
    return made;
  }

  // Of every head, or of all heads as one: the size of its weight says which.
  DecoderNorm head_norm(const nb::object& of, int64_t heads, const char* name) const {
    if (of.is_none()) return {};
    expect(!decoder.rules.interleaved, std::string(name) + " and interleaved heads do not go together");
    const auto weight = nb::cast<Values>(nb::cast<nb::tuple>(of)[0]);
    const int64_t dim = decoder.shape.head_dim;
    return norm(of, static_cast<int64_t>(weight.shape(0)) == dim ? dim : heads * dim, name);
  }

  // One expert: (gate_up, down), of any inner size.
  DecoderExpert expert(const nb::tuple& weights, const char* name) {
    expect(nb::len(weights) == 2, std::string(name) + " must be (gate_up, down)");
    const auto gate_up = nb::cast<nb::tuple>(weights[0]), down = nb::cast<nb::tuple>(weights[1]);
    expect(nb::len(down) == 3, std::string(name) + " must hold (few, many, bias)");
    const auto* packed = nb::cast<const PackedWeight*>(down[0]);
    expect(packed && packed->columns >= 1, std::string(name) + " must have inner features");
    const int64_t width = decoder.shape.width, ffn = packed->columns;
    return {linear(gate_up, (decoder.rules.gated ? 2 : 1) * ffn, width, name), linear(down, width, ffn, name)};
  }

  // experts: (top_k, normalised, router, experts, shared one or None, its gate or None).
  DecoderExperts mixture(const nb::tuple& experts) {
    expect(nb::len(experts) == 6, "experts must be (top_k, normalised, router, experts, shared, shared gate)");
    DecoderExperts made;
    made.top_k = nb::cast<int64_t>(experts[0]);
    made.normalised = nb::cast<bool>(experts[1]);
    made.gated = decoder.rules.gated;
    const auto each = nb::cast<nb::tuple>(experts[3]);
    const auto count = static_cast<int64_t>(nb::len(each));
    expect(count >= 1 && made.top_k >= 1 && made.top_k <= count, "top_k must be in [1, number of experts]");
    made.router = linear(nb::cast<nb::tuple>(experts[2]), count, decoder.shape.width, "router");
    for (int64_t i = 0; i < count; ++i) made.experts.push_back(expert(nb::cast<nb::tuple>(each[i]), "expert"));
    for (const DecoderExpert& one : made.experts)
      expect(one.down.few->columns == made.experts[0].down.few->columns, "experts must have one size");
    if (!experts[4].is_none()) made.shared.push_back(expert(nb::cast<nb::tuple>(experts[4]), "shared expert"));
    expect(experts[5].is_none() || !made.shared.empty(), "a shared gate needs a shared expert");
    if (!experts[5].is_none())
      made.shared_gate = linear(nb::cast<nb::tuple>(experts[5]), 1, decoder.shape.width, "shared gate");
    return made;
  }

  // weights: qkv, out, gate_up, down; the last two only without experts. norms: what attention reads and gives,
  // what the feed-forward part reads and gives, queries, keys. relu: (shift, threshold, neurons or None).
  void add_layer(const nb::tuple& weights, const nb::tuple& norms, int64_t rotation, int64_t window, float scale,
                 const nb::object& experts, const nb::tuple& relu) {
    expect(!has_sessions, "layers cannot be added once there are sessions");
    expect(nb::len(weights) == (experts.is_none() ? 4 : 2) && nb::len(norms) == 6,
           "a layer has four weights, or two and experts, and six norms or None");
    expect(rotation >= -1 && rotation < static_cast<int64_t>(decoder.rotations.size()), "there is no such rotation");
    expect(window >= 0, "a window must not be negative");
    const DecoderShape& s = decoder.shape;
    const auto linear_of = [&](int at, int64_t rows, int64_t columns, const char* name) {
      return linear(nb::cast<nb::tuple>(weights[at]), rows, columns, name);
    };
    const auto norm_of = [&](int at, const char* name) { return norm(norms[at], s.width, name); };
    DecoderLayer layer;
    layer.attention_in = norm_of(0, "attention_in");
    layer.attention_out = norm_of(1, "attention_out");
    layer.ffn_in = norm_of(2, "ffn_in");
    layer.ffn_out = norm_of(3, "ffn_out");
    layer.query = head_norm(norms[4], s.heads, "query norm");
    layer.key = head_norm(norms[5], s.kv_heads, "key norm");
    layer.qkv = linear_of(0, s.qkv_rows(), s.width, "qkv");
    layer.out = linear_of(1, s.width, s.heads * s.head_dim, "out");
    if (experts.is_none()) {
      layer.gate_up = linear_of(2, (decoder.rules.gated ? 2 : 1) * s.ffn, s.width, "gate_up");
      layer.down = linear_of(3, s.width, s.ffn, "down");
    } else {
      layer.experts = mixture(nb::cast<nb::tuple>(experts));
    }
    expect(nb::len(relu) == 3, "relu must be (shift, threshold, neurons)");
    layer.shift = nb::cast<float>(relu[0]);
    layer.threshold = nb::cast<float>(relu[1]);
    const bool is_relu = decoder.rules.activation == DecoderActivation::relu;
    expect(is_relu || (layer.shift == 0.0f && layer.threshold == 0.0f), "only relu has a shift or a threshold");
    if (!relu[2].is_none()) {
      layer.neurons = nb::cast<const NeuronBlock*>(relu[2]);
      const bool fits = layer.neurons->features() == s.width && layer.neurons->neurons() == s.ffn;
      expect(is_relu && experts.is_none() && fits, "neurons are for relu, and as many as inner features");
      kept_alive.push_back(relu[2]);
    }
    layer.rotation = rotation;
    layer.window = window;
    layer.scale = scale;
    decoder.layers.push_back(std::move(layer));
  }
};

std::unique_ptr<BoundDecoder> make(const std::string& kernels, int64_t width, int64_t heads, int64_t kv_heads,
                                   int64_t head_dim, int64_t ffn, int64_t vocab, int64_t context, int activation,
                                   bool layer_norm, bool gated, bool parallel, bool interleaved, float embedding_scale,
                                   float residual_scale, float logits_scale, float score_cap, float logits_cap,
                                   const nb::object& embedding, const nb::tuple& head, const nb::object& final_norm,
                                   const nb::object& positions, const nb::tuple& rotations) {
  for (const int64_t size : {width, heads, kv_heads, head_dim, ffn, vocab, context})
    expect(size >= 1 && size <= kMaxSize, "sizes must be in [1, 2^24]");
  expect(head_dim <= kMaxHeadDim, "head_dim must be at most 1024");
  expect(heads % kv_heads == 0, "heads must be a multiple of kv_heads");
  expect(!interleaved || heads == kv_heads, "interleaved heads need as many keys as queries");
  expect(activation >= 0 && activation <= static_cast<int>(DecoderActivation::relu), "there is no such activation");
  expect(score_cap >= 0.0f && logits_cap >= 0.0f, "caps must not be negative");
  auto made = std::make_unique<BoundDecoder>();
  Decoder& decoder = made->decoder;
  decoder.shape = {width, heads, kv_heads, head_dim, ffn, vocab, context};
  decoder.rules = {static_cast<DecoderActivation>(activation), layer_norm, gated, parallel, interleaved,
                   embedding_scale, residual_scale, logits_scale, score_cap, logits_cap};
  decoder.isa = find_isa(kernels);
  decoder.math = &decoder_math(decoder.isa);
  decoder.embedding = made->weight(embedding, vocab, width, "embedding");
  expect(decoder.embedding->can_read_rows(), "embedding must be a layout whose rows can be read");
  decoder.head = made->linear(head, vocab, width, "head");
  expect(!final_norm.is_none(), "the final norm is missing");
  decoder.final_norm = made->norm(final_norm, width, "final_norm");
  if (!positions.is_none())
    decoder.positions = BoundDecoder::vector(nb::cast<Values>(positions), context * width, "positions");
  for (size_t i = 0; i < nb::len(rotations); ++i) {
    const auto angles = nb::cast<nb::tuple>(rotations[i]);
    expect(nb::len(angles) == 3, "a rotation must be (pairs, cosines, sines)");
    const auto pairs = nb::cast<int64_t>(angles[0]);
    expect(pairs >= 1 && 2 * pairs <= head_dim, "rotated pairs must fit a head");
    const auto cosines = nb::cast<Values>(angles[1]);
    const auto angle_count = static_cast<int64_t>(cosines.shape(0));
    made->turned = std::min(made->turned, angle_count / pairs);
    expect(angle_count % pairs == 0 && (made->turned >= context || made->turned >= 2),
           "a rotation must have the angles of every position, or of two and more");
    decoder.rotations.push_back({pairs, BoundDecoder::vector(cosines, angle_count, "cosines"),
                                 BoundDecoder::vector(nb::cast<Values>(angles[2]), angle_count, "sines")});
  }
  return made;
}

struct BoundSession {
  DecoderSession session;
  const DecoderShape& shape;
  std::atomic<bool> busy{false};

  BoundSession(BoundDecoder& bound, const KvRules& rules)
      : session(bound.decoder, rules), shape(bound.decoder.shape) {
    bound.has_sessions = true;
  }

  void step(const nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& ids, bool all,
            const nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& logits) {
    const auto count = static_cast<int64_t>(ids.shape(0));
    expect(count >= 1 && session.length() + count <= shape.context, "tokens must be at least one and fit the context");
    for (int64_t i = 0; i < count; ++i)
      expect(ids.data()[i] >= 0 && ids.data()[i] < shape.vocab, "a token is outside the vocabulary");
    expect(static_cast<int64_t>(logits.shape(0)) == (all ? count : 1) && static_cast<int64_t>(logits.shape(1)) == shape.vocab,
           "logits must be [tokens, vocab], or [1, vocab] for the last token");
    expect(!busy.exchange(true), "a session runs one call at a time");
    struct Done {
      std::atomic<bool>& busy;
      ~Done() { busy.store(false); }
    } done{busy};
    nb::gil_scoped_release release;
    session.step(ids.data(), count, all, logits.data(), omp_get_max_threads());
  }

  void truncate(int64_t length) {
    expect(length >= 0 && length <= session.length() && session.can_truncate(length),
           "a session can only be cut to what it holds");
    session.truncate(length);
  }
};

KvRules rules_of(int type, int64_t sinks, int64_t window, int64_t chosen, int64_t whole_layers, double mass) {
  expect(type >= 0 && type <= static_cast<int>(KvType::int4), "there is no such type of keys");
  for (const int64_t count : {sinks, window, chosen, whole_layers})
    expect(count >= 0 && count <= kMaxSize, "sinks, window, chosen positions and layers must be in [0, 2^24]");
  expect(window || !sinks, "sinks need a window");
  expect(!window || !chosen, "a window and chosen pages do not go together");
  expect(mass > 0.0 && mass <= 1.0, "mass must be above 0 and at most 1");
  return {static_cast<KvType>(type), sinks, window, chosen, whole_layers, mass};
}

std::unique_ptr<BoundSession> make_session(BoundDecoder& bound, int type, int64_t sinks, int64_t window, int64_t chosen,
                                           int64_t whole_layers, double mass) {
  const KvRules rules = rules_of(type, sinks, window, chosen, whole_layers, mass);
  expect(bound.turned >= std::min(bound.decoder.shape.context, window ? sinks + window : kMaxSize),
         "the tables of angles end before the context does");
  return std::make_unique<BoundSession>(bound, rules);
}

int64_t cache_bytes(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t context, int type, int64_t sinks,
                    int64_t window, int64_t chosen) {
  for (const int64_t size : {layers, kv_heads, head_dim, context})
    expect(size >= 1 && size <= kMaxSize, "sizes must be in [1, 2^24]");
  return static_cast<int64_t>(KvMemory::bytes_of({layers, kv_heads, kv_heads, head_dim, context},
                                                 rules_of(type, sinks, window, chosen, 0, 1.0)));
}

}  // namespace

void bind_decoder(nb::module_& m) {
  nb::class_<BoundDecoder>(m, "Decoder")
      .def("add_layer", &BoundDecoder::add_layer, nb::arg("weights"), nb::arg("norms"), nb::arg("rotation"),
           nb::arg("window"), nb::arg("scale"), nb::arg("experts").none(), nb::arg("relu"));
  m.def("make_decoder", make, nb::kw_only(), nb::arg("kernels"), nb::arg("width"), nb::arg("heads"), nb::arg("kv_heads"),
        nb::arg("head_dim"), nb::arg("ffn"), nb::arg("vocab"), nb::arg("context"), nb::arg("activation"),
        nb::arg("layer_norm"), nb::arg("gated"), nb::arg("parallel"), nb::arg("interleaved"), nb::arg("embedding_scale"),
        nb::arg("residual_scale"), nb::arg("logits_scale"), nb::arg("score_cap"), nb::arg("logits_cap"),
        nb::arg("embedding"), nb::arg("head"), nb::arg("final_norm").none(), nb::arg("positions").none(),
        nb::arg("rotations"));
  m.def("make_session", make_session, nb::keep_alive<0, 1>(), nb::arg("decoder"), nb::kw_only(), nb::arg("type"),
        nb::arg("sinks"), nb::arg("window"), nb::arg("chosen"), nb::arg("whole_layers"), nb::arg("mass"));
  m.def("decoder_cache_bytes", cache_bytes, nb::kw_only(), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"),
        nb::arg("context"), nb::arg("type"), nb::arg("sinks"), nb::arg("window"), nb::arg("chosen"));
  nb::class_<BoundSession>(m, "DecoderSession")
      .def("step", &BoundSession::step, nb::arg("ids").noconvert(), nb::arg("all"), nb::arg("logits").noconvert())
      .def("truncate", &BoundSession::truncate, nb::arg("length"))
      .def("can_truncate",
           [](const BoundSession& bound, int64_t length) {
             return length <= bound.session.length() && bound.session.can_truncate(length);
           },
           nb::arg("length"))
      .def_prop_ro("length", [](const BoundSession& bound) { return bound.session.length(); })
      .def_prop_ro("cache_bytes", [](const BoundSession& bound) { return bound.session.cache_bytes(); });
}

}  // namespace gossamer::bind
