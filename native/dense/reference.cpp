// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "dense_loop.hpp"
#include "gemm.hpp"
#include "gossamer/encoder.hpp"
#include "reference/activation.hpp"

namespace gossamer::reference {
namespace {

// at(k) is the byte of a column.
template <class At>
float row_of(const GemmView& view, int64_t row, const At& at, float scale, float bias, Activation activation) {
  // Unsigned: sums may wrap on the way, as they do in the kernels; the last one is right.
  auto sum = static_cast<uint32_t>(view.row_starts[row]);
  for (int64_t k = 0; k < view.columns; ++k) {
    const int8_t* const quad = view.quad(row / kGemmRows, k / 4) + row % kGemmRows * 4;
    sum += static_cast<uint32_t>(quad[k % 4] * at(k));
  }
  const float v = std::fma(static_cast<float>(static_cast<int32_t>(sum)), scale * view.row_scales[row], bias);
  return activate(v, activation);
}

// The reference quantises panels to [column][token].
void panel(const GemmView& view, int64_t first_group, int64_t last_group, const GemmPanel& p) {
  for (int64_t r = first_group * kGemmRows; r < last_group * kGemmRows && r < view.rows; ++r)
    for (int64_t t = 0; t < kTileTokens; ++t) {
      const auto at = [&](int64_t k) { return int{p.bytes[k * kTileTokens + t]}; };
      p.out[r * kTileTokens + t] = row_of(view, r, at, p.token_scales[t], p.bias[r], p.activation);
    }
}

void rows(const GemmView& view, int64_t first_group, int64_t last_group, const GemmTokens& c) {
  for (int64_t t = 0; t < c.tokens; ++t)
    for (int64_t r = first_group * kGemmRows; r < last_group * kGemmRows && r < view.rows; ++r) {
      const auto at = [&](int64_t k) { return int{c.bytes[t * view.quads * 4 + k]}; };
      c.y[t * c.y_stride + r] = row_of(view, r, at, c.scales[t], c.bias ? c.bias[r] : 0.0f, c.activation);
    }
}

volatile int32_t sink;

double mix(int64_t repeats) {
  static int8_t w[64];
  static uint8_t x[64];
  int32_t sum = 0;
  for (int64_t i = 0; i < repeats; ++i)
    for (int k = 0; k < 64; ++k) sum += x[(i + k) % 64] * w[k];
  sink = sum;
  return 128.0 * static_cast<double>(repeats);
}

}  // namespace

const DenseKernels dense_kernels = {to_bytes, finish};
const GemmKernels gemm_kernels = {panel, rows, 1, mix};

}  // namespace gossamer::reference
