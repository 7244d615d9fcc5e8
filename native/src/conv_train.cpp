// SPDX-License-Identifier: Apache-2.0
#include "gossamer/conv_train.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "in_parallel.hpp"
#include "kept_columns.hpp"

namespace gossamer {
namespace {

// One dimension of a phase. Pixel phase + i * stride of x meets kernel positions first, first + step, ...,
// in pixels i - pad, i - pad + dilation, ... of dY, last position first.
struct Phase {
  int64_t phase, num_pixels;
  int64_t first, step, num;  // kernel positions; none if num is 0
  int64_t pad, pad_end, dilation;
};

std::vector<Phase> phases_of(int64_t size, int64_t out, int64_t kernel, int64_t stride, int64_t pad,
                             int64_t dilation) {
  std::vector<Phase> phases;
  for (int64_t a = 0; a < std::min(stride, size); ++a) {
    std::vector<int64_t> positions;
    for (int64_t k = 0; k < kernel; ++k)
      if ((a + pad - k * dilation) % stride == 0) positions.push_back(k);
    Phase phase = {a, (size - a + stride - 1) / stride, 0, 1, static_cast<int64_t>(positions.size()), 0, 0, 1};
    if (phase.num > 0) phase.first = positions[0];
    if (phase.num > 1) {
      phase.step = positions[1] - positions[0];
      phase.dilation = phase.step * dilation / stride;
    }
    const int64_t span = (phase.num - 1) * phase.dilation;
    phase.pad = span - (a + pad - phase.first * dilation) / stride;
    phase.pad_end = phase.num_pixels - out - phase.pad + span;
    phases.push_back(phase);
  }
  return phases;
}

// A weight that owns its arrays.
struct OwnedWeight {
  int64_t rows, columns;
  std::vector<uint8_t> mask_bits;
  std::vector<float> values;

  KeptWeight view() const { return {values.data(), mask_bits.data(), rows, columns}; }
};

// The part of the kernel that a phase meets, turned: [groups * channels][group rows][kernel positions],
// positions in falling order.
OwnedWeight turned(const KeptWeight& weight, const ConvGeometry& g, const Phase& down, const Phase& right) {
  const int64_t group_rows = weight.rows / g.groups, kernel = g.kernel_h * g.kernel_w;
  const int64_t positions = down.num * right.num;
  // Where columns of the weight go: a channel and a position of the phase, or nowhere (-1).
  std::vector<int32_t> channel(weight.columns), position(weight.columns);
  for (int64_t k = 0; k < weight.columns; ++k) {
    const int64_t h = k % kernel / g.kernel_w - down.first, w = k % g.kernel_w - right.first;
    const bool meets = h >= 0 && w >= 0 && h % down.step == 0 && w % right.step == 0 && h / down.step < down.num &&
                       w / right.step < right.num;
    channel[k] = static_cast<int32_t>(k / kernel);
    position[k] = meets ? static_cast<int32_t>(positions - 1 - (h / down.step * right.num + w / right.step)) : -1;
  }
  OwnedWeight to = {g.groups * g.channels, group_rows * positions, {}, {}};
  const int64_t stride = (to.columns + 7) / 8;
  to.mask_bits.assign(to.rows * stride, 0);
  std::vector<int64_t> next(to.rows + 1, 0);
  std::vector<int64_t> kept;
  for (int64_t r = 0; r < weight.rows; ++r) {
    int64_t* counts = next.data() + r / group_rows * g.channels + 1;
    each_kept_column(weight, r, [&](int64_t k) { counts[channel[k]] += position[k] >= 0; });
  }
  for (int64_t c = 0; c < to.rows; ++c) next[c + 1] += next[c];
  to.values.resize(next[to.rows]);
  const float* value = weight.values;
  for (int64_t r = 0; r < weight.rows; ++r) {
    kept.clear();
    each_kept_column(weight, r, [&](int64_t k) { kept.push_back(k); });
    const int64_t first_row = r / group_rows * g.channels, first_column = r % group_rows * positions;
    // Backwards, so that the columns of each new row come in rising order.
    for (size_t i = kept.size(); i-- > 0;) {
      const int64_t k = kept[i];
      if (position[k] < 0) continue;
      const int64_t row = first_row + channel[k], column = first_column + position[k];
      to.values[next[row]++] = value[i];
      to.mask_bits[row * stride + column / 8] |= static_cast<uint8_t>(1u << column % 8);
    }
    value += kept.size();
  }
  return to;
}

// Pixels of one phase, [planes][down][right], to their places in dx; zeros if there are none.
void spread(const float* pixels, const Phase& down, const Phase& right, const ConvGeometry& g, int64_t planes,
            float* dx, int num_threads) {
  in_parallel(planes, num_threads, [&](int64_t plane) {
    for (int64_t i = 0; i < down.num_pixels; ++i) {
      float* row = dx + (plane * g.height + i * g.stride_h + down.phase) * g.width + right.phase;
      const float* from = pixels ? pixels + (plane * down.num_pixels + i) * right.num_pixels : nullptr;
      for (int64_t j = 0; j < right.num_pixels; ++j) row[j * g.stride_w] = from ? from[j] : 0.0f;
    }
  });
}

}  // namespace

void train_conv(const KeptWeight& weight, const ConvGeometry& geometry, const float* x, int64_t images,
                const float* bias, float* y, Isa isa, int num_threads) {
  PackedConv(weight, geometry, conv_kernels(isa), num_threads)
      .run(x, images, y, nullptr, bias, Activation::none, num_threads);
}

void train_conv_grad_input(const KeptWeight& weight, const ConvGeometry& g, const float* grad, int64_t images,
                           float* dx, Isa isa, int num_threads) {
  const int64_t planes = images * g.groups * g.channels;
  const bool is_direct = g.stride_h == 1 && g.stride_w == 1;
  std::unique_ptr<float[]> pixels;
  for (const Phase& down : phases_of(g.height, g.out_h(), g.kernel_h, g.stride_h, g.pad_h, g.dilation_h))
    for (const Phase& right : phases_of(g.width, g.out_w(), g.kernel_w, g.stride_w, g.pad_w, g.dilation_w)) {
      if (down.num == 0 || right.num == 0) {
        spread(nullptr, down, right, g, planes, dx, num_threads);
        continue;
      }
      const ConvGeometry turned_geometry = {
          weight.rows / g.groups, g.out_h(),  g.out_w(),    down.num,      right.num,     1,             1,
          down.pad,               right.pad, down.pad_end, right.pad_end, down.dilation, right.dilation, g.groups};
      // The first phase is the largest.
      if (!is_direct && !pixels) pixels.reset(new float[planes * down.num_pixels * right.num_pixels]);
      float* to = is_direct ? dx : pixels.get();
      const OwnedWeight part = turned(weight, g, down, right);
      PackedConv(part.view(), turned_geometry, conv_kernels(isa), num_threads)
          .run(grad, images, to, nullptr, nullptr, Activation::none, num_threads);
      if (!is_direct) spread(to, down, right, g, planes, dx, num_threads);
    }
}

void train_conv_grad_values(const KeptWeight& weight, const ConvGeometry& geometry, const float* grad,
                            const float* x, int64_t images, float* grad_values, Isa isa, int num_threads) {
  const KeptWeight positions = {nullptr, weight.mask_bits, weight.rows, weight.columns};
  PackedConv(positions, geometry, conv_kernels(isa), num_threads)
      .grad_values(x, grad, images, grad_values, num_threads);
}

}  // namespace gossamer
