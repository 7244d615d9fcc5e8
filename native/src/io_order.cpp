// SPDX-License-Identifier: Apache-2.0
#include "gossamer/io_order.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace gossamer {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// For every connection, the next step at which its two ends are used again.
struct NextUses {
  std::vector<int64_t> from, to;

  NextUses(const std::vector<Connection>& order, int64_t neurons) : from(order.size()), to(order.size()) {
    std::vector<int64_t> next(neurons, kNever);
    for (int64_t i = static_cast<int64_t>(order.size()) - 1; i >= 0; --i) {
      from[i] = next[order[i].from];
      to[i] = next[order[i].to];
      next[order[i].from] = next[order[i].to] = i;
    }
  }
};

class FastMemory {
 public:
  FastMemory(int64_t neurons, int64_t slots, Eviction eviction)
      : slots_(slots), eviction_(eviction), state_(neurons), rank_(neurons) {}

  IoCount io{0, 0};

  // Brings a neuron in; `pinned` must stay.
  void touch(int32_t neuron, int32_t pinned) {
    State& state = state_[neuron];
    if (state.resident) {
      resident_.erase({rank_[neuron], neuron});
      return;
    }
    while (static_cast<int64_t>(resident_.size()) + held_ + 1 > slots_) evict(pinned);
    ++io.reads;
    state.resident = true;
  }
  // Files it under its next use; a neuron without one is gone.
  void settle(int32_t neuron, int64_t now, int64_t next, bool changed, bool is_output) {
    State& state = state_[neuron];
    state.dirty = state.dirty || changed;
    if (next == kNever) {
      if (is_output) ++io.writes;
      state = {};
      return;
    }
    // The first in the set goes first: clean before changed where two are used equally late.
    rank_[neuron] = eviction_ == Eviction::least_recent ? now : -(2 * next) + state.dirty;
    resident_.insert({rank_[neuron], neuron});
  }
  void hold(int64_t count) { held_ = count; }

 private:
  struct State {
    bool resident = false, dirty = false;
  };
  void evict(int32_t pinned) {
    auto it = resident_.begin();
    if (it->second == pinned) ++it;
    State& state = state_[it->second];
    if (state.dirty) ++io.writes;
    state = {};
    resident_.erase(it);
  }

  int64_t slots_, held_ = 0;
  Eviction eviction_;
  std::vector<State> state_;
  std::vector<int64_t> rank_;
  std::set<std::pair<int64_t, int32_t>> resident_;
};

}  // namespace

IoCount count_io(const std::vector<Connection>& order, int64_t neurons, int64_t memory, Eviction eviction) {
  const NextUses next(order, neurons);
  std::vector<bool> feeds(neurons, false);
  for (const Connection& c : order) feeds[c.from] = true;
  FastMemory fast(neurons, memory - 1, eviction);  // one slot is the weight's
  for (size_t i = 0; i < order.size(); ++i) {
    const auto [from, to] = order[i];
    const auto now = static_cast<int64_t>(i);
    ++fast.io.reads;  // the weight
    fast.hold(0);
    fast.touch(from, to);
    fast.hold(1);  // out of the set while it is used
    fast.touch(to, from);
    fast.hold(0);
    fast.settle(from, now, next.from[i], false, false);
    fast.settle(to, now, next.to[i], true, !feeds[to]);
  }
  return fast.io;
}

bool is_valid_order(const std::vector<Connection>& order, int64_t neurons) {
  std::vector<bool> used(neurons, false);
  for (const Connection& c : order) {
    if (used[c.to]) return false;
    used[c.from] = true;
  }
  return true;
}

std::vector<Connection> anneal_order(std::vector<Connection> order, int64_t neurons, int64_t memory, int64_t moves,
                                     double start, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<int64_t>(random() % n); };
  if (order.size() < 2) return order;
  int64_t cost = count_io(order, neurons, memory, Eviction::farthest).total();
  std::vector<Connection> best = order, tried;
  int64_t best_cost = cost;
  for (int64_t move = 0; move < moves; ++move) {
    tried = order;
    const int64_t size = static_cast<int64_t>(order.size());
    if (below(3) < 2) {
      const int64_t length = std::min<int64_t>(below(2) ? 1 : 1 + below(24), size - 1);
      const int64_t from = below(size - length + 1), to = below(size - length + 1);
      if (from < to)
        std::rotate(tried.begin() + from, tried.begin() + from + length, tried.begin() + to + length);
      else
        std::rotate(tried.begin() + to, tried.begin() + from, tried.begin() + from + length);
    } else {
      const int32_t neuron = tried[below(tried.size())].to;
      const auto into = std::stable_partition(tried.begin(), tried.end(), [=](const Connection& c) { return c.to != neuron; });
      const int64_t rest = into - tried.begin();
      std::rotate(tried.begin() + below(rest + 1), into, tried.end());
    }
    if (!is_valid_order(tried, neurons)) continue;
    const int64_t new_cost = count_io(tried, neurons, memory, Eviction::farthest).total();
    const double temperature = start * (1.0 - double(move) / double(moves));
    const double change = double(new_cost - cost);
    if (change > 0 && (temperature <= 0 || double(random() >> 11) * 0x1p-53 >= std::exp(-change / temperature))) continue;
    order.swap(tried);
    cost = new_cost;
    if (cost < best_cost) {
      best = order;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace gossamer
