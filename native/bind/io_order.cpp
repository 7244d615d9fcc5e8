// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/io_order.hpp"

namespace gossamer::bind {
namespace {

using Pair = std::pair<int32_t, int32_t>;

std::vector<Connection> checked(const nb::sequence& order, int64_t neurons, int64_t memory) {
  if (memory < 3) throw std::invalid_argument("memory must hold at least 3 values");
  std::vector<Connection> connections;
  for (const auto& [from, to] : items_of<Pair>(order)) {
    if (from < 0 || to < 0 || from >= neurons || to >= neurons || from == to)
      throw std::invalid_argument("a connection must join two different neurons in [0, neurons)");
    connections.push_back({from, to});
  }
  if (!is_valid_order(connections, neurons))
    throw std::invalid_argument("a neuron is used before all connections into it are done");
  return connections;
}

}  // namespace

void bind_io_order(nb::module_& m) {
  m.def(
      "count_io",
      [](const nb::sequence& order, int64_t neurons, int64_t memory, bool knows_future) {
        const IoCount io = count_io(checked(order, neurons, memory), neurons, memory,
                                    knows_future ? Eviction::farthest : Eviction::least_recent);
        return std::pair(io.reads, io.writes);
      },
      nb::arg("order"), nb::arg("neurons"), nb::arg("memory"), nb::arg("knows_future"));
  m.def(
      "anneal_order",
      [](const nb::sequence& order, int64_t neurons, int64_t memory, int64_t moves, double start, uint64_t seed) {
        std::vector<Connection> connections = checked(order, neurons, memory);
        {
          nb::gil_scoped_release release;
          connections = anneal_order(std::move(connections), neurons, memory, moves, start, seed);
        }
        std::vector<Pair> result;
        for (const Connection& c : connections) result.emplace_back(c.from, c.to);
        return result;
      },
      nb::arg("order"), nb::arg("neurons"), nb::arg("memory"), nb::arg("moves"), nb::arg("start"), nb::arg("seed"));
}

}  // namespace gossamer::bind
