// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

namespace gossamer {

// At least `bytes` of 64-byte aligned memory of the calling thread, or null. It lives as long as
// its thread: a new one per call would cost page faults every time. One caller at a time: what a
// kernel keeps there is gone when the next one asks.
void* thread_scratch(size_t bytes);

}  // namespace gossamer
