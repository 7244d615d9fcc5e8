// SPDX-License-Identifier: Apache-2.0
// A decoder as Python builds it: a shape, then one layer after the other, then sessions. What it points
// to are Python objects, which it keeps alive.
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

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

  void add_layer(const Values& attention_norm, const nb::tuple& qkv, const nb::tuple& out, const Values& ffn_norm,
                 const nb::tuple& gate_up, const nb::tuple& down) {
    expect(!has_sessions, "layers cannot be added once there are sessions");
    const DecoderShape& s = decoder.shape;
    DecoderLayer layer;
    layer.attention_norm = vector(attention_norm, s.width, "attention_norm");
    layer.ffn_norm = vector(ffn_norm, s.width, "ffn_norm");
    layer.qkv = linear(qkv, s.qkv_rows(), s.width, "qkv");
    layer.out = linear(out, s.width, s.heads * s.head_dim, "out");
    layer.gate_up = linear(gate_up, 2 * s.ffn, s.width, "gate_up");
    layer.down = linear(down, s.width, s.ffn, "down");
    decoder.layers.push_back(std::move(layer));
  }
};

std::unique_ptr<BoundDecoder> make(const std::string& kernels, int64_t width, int64_t heads, int64_t kv_heads,
                                   int64_t head_dim, int64_t ffn, int64_t vocab, int64_t context, float eps,
                                   const nb::object& embedding, const nb::tuple& head, const Values& final_norm,
                                   const Values& cosines, const Values& sines) {
  for (const int64_t size : {width, heads, kv_heads, head_dim, ffn, vocab, context})
    expect(size >= 1 && size <= kMaxSize, "sizes must be in [1, 2^24]");
  expect(head_dim % 2 == 0 && head_dim <= kMaxHeadDim, "head_dim must be even and at most 1024");
  expect(heads % kv_heads == 0, "heads must be a multiple of kv_heads");
  auto made = std::make_unique<BoundDecoder>();
  Decoder& decoder = made->decoder;
  decoder.shape = {width, heads, kv_heads, head_dim, ffn, vocab, context, eps};
  decoder.math = &decoder_math(find_isa(kernels));
  decoder.embedding = made->weight(embedding, vocab, width, "embedding");
  expect(decoder.embedding->can_read_rows(), "embedding must be a layout whose rows can be read");
  decoder.head = made->linear(head, vocab, width, "head");
  decoder.final_norm = BoundDecoder::vector(final_norm, width, "final_norm");
  decoder.cosines = BoundDecoder::vector(cosines, context * head_dim / 2, "cosines");
  decoder.sines = BoundDecoder::vector(sines, context * head_dim / 2, "sines");
  return made;
}

struct BoundSession {
  DecoderSession session;
  const DecoderShape& shape;
  std::atomic<bool> busy{false};

  explicit BoundSession(BoundDecoder& bound) : session(bound.decoder), shape(bound.decoder.shape) {
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
    expect(length >= 0 && length <= session.length(), "a session can only be cut to what it holds");
    session.truncate(length);
  }
};

}  // namespace

void bind_decoder(nb::module_& m) {
  nb::class_<BoundDecoder>(m, "Decoder")
      .def("add_layer", &BoundDecoder::add_layer, nb::arg("attention_norm").noconvert(), nb::arg("qkv"), nb::arg("out"),
           nb::arg("ffn_norm").noconvert(), nb::arg("gate_up"), nb::arg("down"));
  m.def("make_decoder", make, nb::kw_only(), nb::arg("kernels"), nb::arg("width"), nb::arg("heads"), nb::arg("kv_heads"),
        nb::arg("head_dim"), nb::arg("ffn"), nb::arg("vocab"), nb::arg("context"), nb::arg("eps"),
        nb::arg("embedding"), nb::arg("head"), nb::arg("final_norm").noconvert(), nb::arg("cosines").noconvert(),
        nb::arg("sines").noconvert());
  nb::class_<BoundSession>(m, "DecoderSession")
      .def(nb::init<BoundDecoder&>(), nb::keep_alive<1, 2>(), nb::arg("decoder"))
      .def("step", &BoundSession::step, nb::arg("ids").noconvert(), nb::arg("all"), nb::arg("logits").noconvert())
      .def("truncate", &BoundSession::truncate, nb::arg("length"))
      .def_prop_ro("length", [](const BoundSession& bound) { return bound.session.length(); })
      .def_prop_ro("cache_bytes", [](const BoundSession& bound) { return bound.session.cache_bytes(); });
}

}  // namespace gossamer::bind
