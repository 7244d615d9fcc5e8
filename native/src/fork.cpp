// SPDX-License-Identifier: Apache-2.0
#include "gossamer/fork.hpp"

#include <pthread.h>

#include <atomic>

namespace gossamer {
namespace {

std::atomic<bool> forked{false};
const bool fork_watch = [] {
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  return true;
}();

}  // namespace

int usable_threads(int wanted) { return forked.load() ? 1 : wanted; }

}  // namespace gossamer
