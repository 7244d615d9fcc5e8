// SPDX-License-Identifier: Apache-2.0
// How many values a sparse network moves between a small fast memory and a large slow one, for an order of its
// connections (the model of Gleinig, Ben-Nun and Hoefler, arXiv 2301.01048), and orders that move fewer.
//
// A step takes one connection a -> b: its weight (read, used once), the value of a and the sum of b are in the
// fast memory. The sum starts from a bias that is read; inputs are read; a value that was changed and is needed
// again costs a write when it is evicted and a read when it comes back; outputs are written once. What nobody
// needs any more costs nothing. An order is valid if all connections into a neuron come before those out of it.
#pragma once
#include <cstdint>
#include <vector>

namespace gossamer {

struct Connection {
  int32_t from, to;
};

struct IoCount {
  int64_t reads, writes;
  int64_t total() const { return reads + writes; }
};

enum class Eviction { least_recent, farthest };  // the latter knows the future: nothing needs fewer reads

// `memory` is the number of values, at least 3: a weight and the two ends of its connection.
IoCount count_io(const std::vector<Connection>& order, int64_t neurons, int64_t memory, Eviction eviction);

bool is_valid_order(const std::vector<Connection>& order, int64_t neurons);

// Simulated annealing over valid orders; gives the best one found. Moves: one connection or a run of up to 24
// elsewhere, or all connections into a neuron together. The temperature falls from `start` to 0.
std::vector<Connection> anneal_order(std::vector<Connection> order, int64_t neurons, int64_t memory, int64_t moves,
                                     double start, uint64_t seed);

}  // namespace gossamer
