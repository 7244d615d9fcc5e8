// SPDX-License-Identifier: Apache-2.0
// Attention over tiles. Arrays cross as addresses; tiles are checked once, when they are made.
#include <nanobind/stl/array.h>
#include <omp.h>

#include <array>
#include <stdexcept>

#include "../bind/common.hpp"
#include "../bind/families.hpp"
#include "attention.hpp"

namespace gossamer::bind {
namespace {

// Fixed sizes: a list for which there is no memory would end the process.
using Direction = std::array<uintptr_t, 3>;  // starts, columns, masks
using Strided = std::array<int64_t, 4>;      // address and three strides
using Sizes = std::array<int64_t, 6>;
using Extras = std::array<uintptr_t, 4>;

constexpr int64_t kMostTokens = int64_t{1} << 30;

int64_t tiles_of(int64_t tokens) { return (tokens + kTile - 1) / kTile; }

// The tiles of some lists, both ways, whose arrays the caller holds, checked.
class PyTiles {
 public:
  PyTiles(int64_t lists, int64_t queries, int64_t keys, int64_t num_tiles, int64_t num_masks,
          const Direction& by_query, const Direction& by_key, uintptr_t masks)
      : lists_(lists), queries_(queries), keys_(keys), masks_(reinterpret_cast<const uint64_t*>(masks)) {
    if (lists < 1 || queries < 0 || keys < 0 || queries > kMostTokens || keys > kMostTokens || num_tiles < 0 ||
        num_masks < 0 || num_masks > (int64_t{1} << 30))
      throw std::invalid_argument("lists must be positive, tokens in [0, 2^30], tiles and masks not negative");
    if (num_masks && !masks) throw std::invalid_argument("masks are missing");
    by_query_ = checked(by_query, tiles_of(queries), tiles_of(keys), num_tiles, num_masks);
    by_key_ = checked(by_key, tiles_of(keys), tiles_of(queries), num_tiles, num_masks);
  }

  int64_t lists() const { return lists_; }
  int64_t queries() const { return queries_; }
  int64_t keys() const { return keys_; }
  const TileRows& by_query() const { return by_query_; }
  const TileRows& by_key() const { return by_key_; }
  const uint64_t* masks() const { return masks_; }

 private:
  TileRows checked(const Direction& arrays, int64_t rows, int64_t columns, int64_t num_tiles,
                   int64_t num_masks) const {
    if (!arrays[0] || (num_tiles && (!arrays[1] || !arrays[2])))
      throw std::invalid_argument("a direction of tiles has starts, columns and masks");
    const TileRows t = {reinterpret_cast<const int64_t*>(arrays[0]), reinterpret_cast<const int32_t*>(arrays[1]),
                        reinterpret_cast<const int32_t*>(arrays[2])};
    const int64_t all_rows = lists_ * rows;
    if (t.starts[0] != 0 || t.starts[all_rows] != num_tiles)
      throw std::invalid_argument("starts must begin with 0 and end with the number of tiles");
    for (int64_t r = 0; r < all_rows; ++r)
      if (t.starts[r] > t.starts[r + 1]) throw std::invalid_argument("starts must not decrease");
    for (int64_t i = 0; i < num_tiles; ++i)
      if (t.columns[i] < 0 || t.columns[i] >= columns || t.masks[i] < -1 || t.masks[i] >= num_masks)
        throw std::invalid_argument("a tile is out of range");
    return t;
  }

  int64_t lists_, queries_, keys_;
  const uint64_t* masks_;
  TileRows by_query_ = {}, by_key_ = {};
};

HeadRows head_rows(const Strided& t) {
  return {reinterpret_cast<void*>(t[0]), t[1], t[2], t[3]};
}

AttentionCall make_call(const PyTiles& tiles, const Sizes& sizes, const Extras& extras,
                        double scale, double cap, double dropout, uint64_t seed) {
  AttentionCall c = {};
  c.batch = sizes[0], c.heads = sizes[1], c.kv_heads = sizes[2], c.dim = sizes[3], c.value_dim = sizes[4];
  c.is_bf16 = sizes[5] != 0;
  c.queries = tiles.queries(), c.keys = tiles.keys();
  if (c.batch < 0 || c.heads < 1 || c.kv_heads < 1 || c.heads % c.kv_heads || c.dim < 1 || c.value_dim < 1 ||
      c.dim > kMostDim || c.value_dim > kMostDim)
    throw std::invalid_argument("sizes are out of range");
  if (!(dropout >= 0.0 && dropout < 1.0)) throw std::invalid_argument("dropout must be in [0, 1)");
  c.by_query = tiles.by_query(), c.by_key = tiles.by_key(), c.masks = tiles.masks();
  c.head_list = reinterpret_cast<const int32_t*>(extras[0]);
  c.ranges = reinterpret_cast<const int32_t*>(extras[1]);
  c.bias = reinterpret_cast<const float*>(extras[2]);
  c.positions = reinterpret_cast<const int32_t*>(extras[3]);
  if (c.positions && c.queries != c.keys) throw std::invalid_argument("positions need as many queries as keys");
  if (!c.head_list) throw std::invalid_argument("an array is missing");
  for (int64_t h = 0; h < c.heads; ++h)
    if (c.head_list[h] < 0 || c.head_list[h] >= tiles.lists()) throw std::invalid_argument("a list is out of range");
  c.scale = static_cast<float>(scale), c.cap = static_cast<float>(cap);
  c.drop = static_cast<uint32_t>(dropout * 4294967296.0);
  c.keep_scale = static_cast<float>(1.0 / (1.0 - dropout));
  c.seed = seed;
  return c;
}

void forward(const PyTiles& tiles, const Sizes& sizes, const Strided& q,
             const Strided& k, const Strided& v, const Strided& out,
             uintptr_t lse, const Extras& extras, double scale, double cap, double dropout,
             uint64_t seed, const std::string& kernels) {
  AttentionCall c = make_call(tiles, sizes, extras, scale, cap, dropout, seed);
  c.q = head_rows(q), c.k = head_rows(k), c.v = head_rows(v), c.out = head_rows(out);
  c.lse = reinterpret_cast<float*>(lse);
  const bool some_q = c.batch && c.queries, some_k = c.batch && c.keys;
  if ((some_q && (!c.q.data || !c.out.data || !lse)) || (some_k && (!c.k.data || !c.v.data)))
    throw std::invalid_argument("an array is missing");
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  attention_forward(c, isa, omp_get_max_threads());
}

void backward(const PyTiles& tiles, const Sizes& sizes, const Strided& q,
              const Strided& k, const Strided& v, const Strided& out,
              uintptr_t lse, const Extras& extras, double scale, double cap, double dropout,
              uint64_t seed, const Strided& grad, uintptr_t grad_lse, const Strided& dq,
              const Strided& dk, const Strided& dv, uintptr_t dbias,
              const std::string& kernels) {
  AttentionBackwardCall b = {};
  AttentionCall& c = b.forward;
  c = make_call(tiles, sizes, extras, scale, cap, dropout, seed);
  c.q = head_rows(q), c.k = head_rows(k), c.v = head_rows(v), c.out = head_rows(out);
  c.lse = reinterpret_cast<float*>(lse);
  b.grad = head_rows(grad), b.dq = head_rows(dq), b.dk = head_rows(dk), b.dv = head_rows(dv);
  b.grad_lse = reinterpret_cast<const float*>(grad_lse);
  b.dbias = reinterpret_cast<float*>(dbias);
  if (b.dbias && !c.bias) throw std::invalid_argument("a gradient of a bias that is not there");
  const bool some_q = c.batch && c.queries, some_k = c.batch && c.keys;
  if ((some_q && (!c.q.data || !c.out.data || !lse || !b.grad.data || !b.dq.data)) ||
      (some_k && (!c.k.data || !c.v.data || !b.dk.data || !b.dv.data)))
    throw std::invalid_argument("an array is missing");
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  attention_backward(b, isa, omp_get_max_threads());
}

}  // namespace

void bind_attention(nb::module_& m) {
  nb::class_<PyTiles>(m, "AttentionTiles")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t, int64_t, const Direction&, const Direction&, uintptr_t>());
  m.def("attention_forward", &forward);
  m.def("attention_backward", &backward);
}

}  // namespace gossamer::bind
