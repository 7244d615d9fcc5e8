// SPDX-License-Identifier: Apache-2.0
// IEEE half precision, read without the instructions that only some CPUs have.
#pragma once
#include <cstdint>
#include <cstring>

namespace gossamer {

// Finite numbers only; exact. The exponent is moved by a product, which takes denormals along.
static inline float from_fp16(uint16_t half) {
  uint32_t bits = static_cast<uint32_t>(half & 0x7fff) << 13;
  float v;
  std::memcpy(&v, &bits, sizeof v);
  v *= 0x1p112f;
  return half & 0x8000 ? -v : v;
}

}  // namespace gossamer
