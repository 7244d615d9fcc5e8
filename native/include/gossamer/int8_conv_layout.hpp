// SPDX-License-Identifier: Apache-2.0
// A convolution's weight in int8, packed for one instruction set and one size of images.
#pragma once
#include <cstdint>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/int8_conv.hpp"
#include "gossamer/int8_layout.hpp"

namespace gossamer {

// One dimension of the quantised images. String position i of a phase is pixel i * stride + phase - pad.
struct Int8ConvAxis {
  std::vector<int64_t> phases;  // those that kernel positions see, ascending
  int64_t stride, pad, size, out;
  int64_t max_shift;
  int64_t length;  // positions from one row or image to the next

  Int8ConvAxis(int64_t size, int64_t out, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation);
  // Positions of phases[i] that are pixels: first..last.
  int64_t first(int64_t i) const;
  int64_t last(int64_t i) const;
};

// Immutable once packed: it may be used from several threads at once. Values are finite, padding is not
// negative.
class Int8Conv {
 public:
  // activation_bits: 7 or 8; 0: what the instruction set does best.
  Int8Conv(const KeptWeight& weight, const ConvGeometry& geometry, int activation_bits,
           const Int8ConvKernels& kernels);

  const ConvGeometry& geometry() const { return geometry_; }
  int activation_bits() const { return groups_[0].activation_bits; }
  size_t bytes() const;
  // As PackedConv::run.
  void run(const float* x, int64_t images, float* y, const float* added, const float* bias,
           Activation activation, int num_threads) const;

 private:
  void plan_runs(int64_t width);
  // The view of a group for `images` images that are quantised together.
  Int8ConvView view(int64_t group, int64_t images) const;
  int64_t images_together(int64_t images) const;
  void quantise(const float* x, int64_t images, uint8_t* strings, float* scales, int num_threads) const;
  void place_channel(const float* x, float inverse, int64_t image, int64_t images, uint8_t* pixels,
                     uint8_t* strings) const;
  int64_t phase_bytes(int64_t images) const;

  const Int8ConvKernels& kernels_;
  int64_t rows_;
  ConvGeometry geometry_;
  Int8ConvAxis vertical_, horizontal_;
  std::vector<Int8ConvRun> runs_;
  std::vector<int64_t> places_;  // of kernel position [kernel_h][kernel_w] in a channel's slab
  int64_t width_ = 0, channel_bytes_ = 0, block_channels_ = 0;
  std::vector<Int8Layout> groups_;
};

// VNNI is asked of the CPU, as by int8_kernels().
const Int8ConvKernels& int8_conv_kernels(Isa isa);

}  // namespace gossamer
