// SPDX-License-Identifier: Apache-2.0
// Products with graphs. Arrays cross as addresses, as in train.cpp; edges are checked once, when they are made.
#include <omp.h>

#include <memory>
#include <stdexcept>

#include "../bind/common.hpp"
#include "../bind/families.hpp"
#include "gossamer/big_alloc.hpp"
#include "graph.hpp"
#include "results.hpp"

namespace gossamer::bind {
namespace {

const float* floats(uintptr_t p) { return reinterpret_cast<const float*>(p); }
float* to_floats(uintptr_t p) { return reinterpret_cast<float*>(p); }

// One direction of a graph whose arrays the caller holds, checked.
class PyEdgeRows {
 public:
  PyEdgeRows(int64_t rows, int64_t columns, int64_t num_edges, uintptr_t starts, uintptr_t column_ids, uintptr_t row_ids,
             uintptr_t places)
      : edges_{rows, reinterpret_cast<const int64_t*>(starts), reinterpret_cast<const int32_t*>(column_ids),
               reinterpret_cast<const int32_t*>(row_ids), reinterpret_cast<const int32_t*>(places)},
        columns_(columns) {
    constexpr int64_t kMost = int64_t{1} << 31;
    if (rows < 0 || columns < 0 || num_edges < 0 || rows >= kMost || columns >= kMost || num_edges >= kMost)
      throw std::invalid_argument("rows, columns and edges must be in [0, 2^31)");
    if (!starts || (num_edges && !column_ids)) throw std::invalid_argument("starts and columns must not be null");
    if (edges_.starts[0] != 0 || edges_.starts[rows] != num_edges)
      throw std::invalid_argument("starts must begin with 0 and end with the number of edges");
    for (int64_t k = 0; k < rows; ++k)
      if (edges_.starts[k] > edges_.starts[k + 1]) throw std::invalid_argument("starts must not decrease");
    for (int64_t e = 0; e < num_edges; ++e)
      if (edges_.columns[e] < 0 || edges_.columns[e] >= columns)
        throw std::invalid_argument("a column is out of range");
    check_permutation(edges_.row_ids, rows, "row_ids");
    check_permutation(edges_.places, num_edges, "places");
  }

  const EdgeRows& edges() const { return edges_; }
  int64_t num_columns() const { return columns_; }

 private:
  static void check_permutation(const int32_t* ids, int64_t count, const char* what) {
    if (!ids) return;
    std::vector<bool> seen(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || ids[i] >= count || seen[static_cast<size_t>(ids[i])])
        throw std::invalid_argument(std::string(what) + " must be a permutation");
      seen[static_cast<size_t>(ids[i])] = true;
    }
  }

  EdgeRows edges_;
  int64_t columns_;
};

void check_heads(int64_t heads, int64_t width) {
  if (heads < 1 || heads > kMostHeads || width < 0 || width % heads)
    throw std::invalid_argument("heads must be in [1, 256] and divide the width");
}

void check_given(std::initializer_list<uintptr_t> addresses, int64_t elements) {
  if (elements == 0) return;
  for (const uintptr_t p : addresses)
    if (!p) throw std::invalid_argument("an array is missing");
}

int64_t num_edges(const PyEdgeRows& e) { return e.edges().starts[e.edges().rows]; }

template <class Run>
void run_native(const std::string& kernels, Run run) {
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  run(isa, omp_get_max_threads());
}

void spmm(const PyEdgeRows& e, uintptr_t values, int64_t heads, uintptr_t bias, uintptr_t x, uintptr_t y, int64_t width,
          bool is_bf16, const std::string& kernels) {
  check_heads(heads, width);
  check_given({y}, e.edges().rows * width);
  check_given({x}, e.num_columns() * width);
  const SpmmCall call = {e.edges(), floats(values), heads, floats(bias), floats(x), to_floats(y), width};
  const Bf16SpmmCall halves = {e.edges(),
                               floats(values),
                               heads,
                               floats(bias),
                               reinterpret_cast<const uint16_t*>(x),
                               reinterpret_cast<uint16_t*>(y),
                               width};
  run_native(kernels, [&](Isa isa, int threads) {
    is_bf16 ? graph_bf16_spmm(halves, isa, threads) : graph_spmm(call, isa, threads);
  });
}

void max(const PyEdgeRows& e, uintptr_t x, uintptr_t y, uintptr_t ties, int64_t width, const std::string& kernels) {
  check_given({y}, e.edges().rows * width);
  check_given({x}, e.num_columns() * width);
  const MaxCall call = {e.edges(), floats(x), to_floats(y), to_floats(ties), width};
  run_native(kernels, [&](Isa isa, int threads) { graph_max(call, isa, threads); });
}

void max_backward(const PyEdgeRows& e, uintptr_t x, uintptr_t y, uintptr_t grad, uintptr_t dx, int64_t width,
                  const std::string& kernels) {
  check_given({x, dx}, e.edges().rows * width);
  check_given({y, grad}, e.num_columns() * width);
  const MaxBackwardCall call = {e.edges(), floats(x), floats(y), floats(grad), to_floats(dx), width};
  run_native(kernels, [&](Isa isa, int threads) { graph_max_backward(call, isa, threads); });
}

void sddmm(const PyEdgeRows& e, uintptr_t grad, uintptr_t x, uintptr_t out, int64_t heads, int64_t width,
           const std::string& kernels) {
  check_heads(heads, width);
  check_given({grad, x, out}, num_edges(e) * width);
  const SddmmCall call = {e.edges(), floats(grad), floats(x), to_floats(out), heads, width};
  run_native(kernels, [&](Isa isa, int threads) { graph_sddmm(call, isa, threads); });
}

void attention(const PyEdgeRows& e, uintptr_t target, uintptr_t source, double slope, uintptr_t weights, uintptr_t keep,
               uintptr_t kept, int64_t heads, uintptr_t x, uintptr_t y, int64_t width, const std::string& kernels) {
  check_heads(heads, width);
  if (e.edges().places) throw std::invalid_argument("attention runs on the edges of targets");
  if (!target != !source || !keep != !kept) throw std::invalid_argument("an array is missing");
  check_given({weights}, num_edges(e));
  check_given({x}, e.num_columns() * width);
  check_given({y}, e.edges().rows * width);
  const SoftmaxCall softmax = {e.edges(),          floats(target), floats(source), static_cast<float>(slope),
                               to_floats(weights), heads};
  const SpmmCall product = {e.edges(), floats(keep ? kept : weights), heads, nullptr, floats(x), to_floats(y), width};
  run_native(kernels, [&](Isa isa, int threads) {
    graph_attention(softmax, product, floats(keep), to_floats(kept), isa, threads);
  });
}

void attention_backward(const PyEdgeRows& e, uintptr_t target, uintptr_t source, double slope, uintptr_t weights,
                        uintptr_t keep, int64_t heads, uintptr_t grad, uintptr_t x, uintptr_t dlogits, uintptr_t sums,
                        int64_t width, const std::string& kernels) {
  check_heads(heads, width);
  if (e.edges().places) throw std::invalid_argument("attention runs on the edges of targets");
  check_given({weights, grad, x, dlogits}, num_edges(e) * width);
  const SddmmCall product = {e.edges(), floats(grad), floats(x), to_floats(dlogits), heads, width};
  const SoftmaxBackwardCall softmax = {
      {e.edges(), floats(target), floats(source), static_cast<float>(slope), to_floats(weights), heads},
      to_floats(dlogits),
      to_floats(sums)};
  run_native(kernels, [&](Isa isa, int threads) {
    graph_attention_backward(product, softmax, floats(keep), isa, threads);
  });
}

void edge_sum(const PyEdgeRows& e, uintptr_t values, uintptr_t sums, int64_t heads, const std::string& kernels) {
  check_heads(heads, heads);
  check_given({values}, num_edges(e));
  check_given({sums}, e.edges().rows);
  const EdgeSumCall call = {e.edges(), floats(values), to_floats(sums), heads};
  run_native(kernels, [&](Isa isa, int threads) { graph_edge_sum(call, isa, threads); });
}

void pair_logits(const PyEdgeRows& e, uintptr_t target, uintptr_t source, uintptr_t att, double slope, uintptr_t logits,
                 int64_t heads, int64_t width, const std::string& kernels) {
  check_heads(heads, width);
  check_given({target, source, att, logits}, num_edges(e) * width);
  const PairLogitsCall call = {e.edges(),   floats(target),    floats(source), floats(att), static_cast<float>(slope),
                               to_floats(logits), heads, width};
  run_native(kernels, [&](Isa isa, int threads) { graph_pair_logits(call, isa, threads); });
}

void pair_backward(const PyEdgeRows& e, uintptr_t own, uintptr_t other, uintptr_t att, uintptr_t grad, double slope,
                   uintptr_t dx, uintptr_t datt, int64_t heads, int64_t width, const std::string& kernels) {
  check_heads(heads, width);
  check_given({own, dx}, e.edges().rows * width);
  check_given({other, grad, att}, num_edges(e) * width);
  const PairBackwardCall call = {e.edges(), floats(own),   floats(other),   floats(att), floats(grad),
                                 static_cast<float>(slope), to_floats(dx), to_floats(datt), heads, width};
  run_native(kernels, [&](Isa isa, int threads) { graph_pair_backward(call, isa, threads); });
}

// How many numbers of x [rows, width] are not 0; starts [rows + 1] are set.
int64_t count(uintptr_t x, int64_t rows, int64_t width, uintptr_t starts, const std::string& kernels) {
  if (rows < 0 || width < 0 || width >= int64_t{1} << 31) throw std::invalid_argument("sizes are out of range");
  check_given({x}, rows * width);
  check_given({starts}, 1);
  const SqueezeCall call = {floats(x), width, reinterpret_cast<int64_t*>(starts), nullptr, nullptr};
  int64_t total = 0;
  run_native(kernels, [&](Isa isa, int threads) { total = graph_count(call, rows, isa, threads); });
  return total;
}

// Columns and values of them, as many as `count` gave for the same x.
void squeeze(uintptr_t x, int64_t rows, int64_t width, uintptr_t starts, uintptr_t columns, uintptr_t values,
             const std::string& kernels) {
  if (rows < 0 || width < 0) throw std::invalid_argument("sizes are out of range");
  check_given({x}, rows * width);
  check_given({starts, columns, values}, 1);
  const SqueezeCall call = {floats(x), width, reinterpret_cast<int64_t*>(starts), reinterpret_cast<int32_t*>(columns),
                            to_floats(values)};
  run_native(kernels, [&](Isa isa, int threads) { graph_squeeze(call, rows, isa, threads); });
}

// Endpoints are checked here: false where one is out of range.
bool make_rows(uintptr_t sources, uintptr_t targets, int64_t count, int64_t columns, int64_t rows, uintptr_t row_order,
               uintptr_t starts, uintptr_t column_ids, uintptr_t numbers) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (rows < 0 || columns < 0 || count < 0 || rows >= kMost || columns >= kMost || count >= kMost)
    throw std::invalid_argument("rows, columns and edges must be in [0, 2^31)");
  check_given({sources, targets, column_ids, numbers}, count);
  check_given({starts}, 1);
  const auto* from = reinterpret_cast<const int64_t*>(sources);
  const auto* to = reinterpret_cast<const int64_t*>(targets);
  for (int64_t e = 0; e < count; ++e)
    if (from[e] < 0 || from[e] >= columns || to[e] < 0 || to[e] >= rows) return false;
  edges_to_rows(from, to, count, rows, reinterpret_cast<const int32_t*>(row_order),
                reinterpret_cast<int64_t*>(starts), reinterpret_cast<int32_t*>(column_ids),
                reinterpret_cast<int32_t*>(numbers));
  return true;
}

void rcm(const PyEdgeRows& in, const PyEdgeRows& out, uintptr_t order) {
  const int64_t nodes = in.edges().rows;
  if (in.num_columns() != nodes || out.edges().rows != nodes || out.num_columns() != nodes || in.edges().row_ids ||
      out.edges().row_ids)
    throw std::invalid_argument("an order of nodes needs both directions of a square graph, in their own order");
  check_given({order}, nodes);
  cuthill_mckee(in.edges(), out.edges(), reinterpret_cast<int32_t*>(order));
}

int64_t sample(const PyEdgeRows& e, uintptr_t rows, int64_t count, int64_t fanout, uint64_t seed, uintptr_t positions,
               uintptr_t counts) {
  if (count < 0 || fanout < 0) throw std::invalid_argument("count and fanout must not be negative");
  if (e.edges().row_ids) throw std::invalid_argument("samples need rows in their own order");
  check_given({rows, counts}, count);
  check_given({positions}, count * fanout);
  const auto* ids = reinterpret_cast<const int64_t*>(rows);
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= e.edges().rows) throw std::invalid_argument("a row is out of range");
  return sample_neighbours(e.edges(), ids, count, fanout, seed, reinterpret_cast<int64_t*>(positions),
                           reinterpret_cast<int64_t*>(counts));
}

// A tensor [rows, width] of float32 or bfloat16 whose memory comes back when it is freed.
nb::ndarray<nb::pytorch> new_result(int64_t rows, int64_t width, bool is_bf16) {
  const size_t size = is_bf16 ? 2 : 4;
  if (rows < 1 || width < 1 || static_cast<size_t>(width) > SIZE_MAX / size / static_cast<size_t>(rows) / 2)
    throw std::invalid_argument("a result must have elements, and not too many");
  struct Held {
    void* memory;
    size_t bytes;
  };
  auto held = std::make_unique<Held>();
  held->bytes = static_cast<size_t>(rows) * static_cast<size_t>(width) * size;
  held->memory = results().take(held->bytes);
  void* const memory = held->memory;
  const nb::capsule owner(held.release(), [](void* p) noexcept {
    const std::unique_ptr<Held> held(static_cast<Held*>(p));
    results().give(held->memory, held->bytes);
  });
  const size_t shape[] = {static_cast<size_t>(rows), static_cast<size_t>(width)};
  const auto code = static_cast<uint8_t>(is_bf16 ? nb::dlpack::dtype_code::Bfloat : nb::dlpack::dtype_code::Float);
  return nb::ndarray<nb::pytorch>(memory, 2, shape, owner, nullptr,
                                  nb::dlpack::dtype{code, static_cast<uint8_t>(8 * size), 1}, nb::device::cpu::value);
}

}  // namespace

void bind_graph(nb::module_& m) {
  nb::class_<PyEdgeRows>(m, "EdgeRows")
      .def(nb::init<int64_t, int64_t, int64_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t>());
  m.def("graph_spmm", &spmm);
  m.def("graph_max", &max);
  m.def("graph_max_backward", &max_backward);
  m.def("graph_sddmm", &sddmm);
  m.def("graph_attention", &attention);
  m.def("graph_attention_backward", &attention_backward);
  m.def("graph_edge_sum", &edge_sum);
  m.def("graph_pair_logits", &pair_logits);
  m.def("graph_pair_backward", &pair_backward);
  m.def("graph_count", &count);
  m.def("graph_squeeze", &squeeze);
  m.def("graph_make_rows", &make_rows);
  m.def("graph_rcm", &rcm);
  m.def("graph_sample", &sample);
  m.def("new_result", &new_result);
  m.def("drop_results", [] { results().drop(); });
  m.def("offer_huge_pages", [](uintptr_t memory, size_t bytes) {
    const nb::gil_scoped_release release;
    offer_huge_pages(reinterpret_cast<void*>(memory), bytes);
  });
  m.def("result_bytes", [] {
    const Results::Sizes sizes = results().sizes();
    return nb::make_tuple(sizes.in_use, sizes.free);
  });
}

}  // namespace gossamer::bind
