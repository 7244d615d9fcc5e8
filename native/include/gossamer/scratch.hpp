// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

namespace gossamer {

// Two, since images that all threads read live in the memory of the one that called.
enum class Scratch { kernel, images };

// At least `bytes` of 64-byte aligned memory of the calling thread, or null. It lives as long as
// its thread: a new one per call would cost page faults every time. One caller at a time: what a
// kernel keeps there is gone when the next one asks.
void* thread_scratch(size_t bytes, Scratch use = Scratch::kernel);

}  // namespace gossamer
