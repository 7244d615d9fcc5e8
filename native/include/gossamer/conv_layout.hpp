// SPDX-License-Identifier: Apache-2.0
// A convolution's weight packed for one instruction set and one size of images.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gossamer/conv.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/fresh_panel.hpp"

namespace gossamer {

// Immutable once packed: it may be used from several threads at once. A weight without values (a null
// pointer) gives positions only: no run(), but grad_values().
class PackedConv {
 public:
  PackedConv(const KeptWeight& weight, const ConvGeometry& geometry, const ConvKernels& kernels,
             int num_threads = 1);

  const ConvGeometry& geometry() const { return given_; }
  int64_t rows() const { return rows_; }
  size_t bytes() const;
  // x [images][groups * channels][height][width], y [images][rows][out_h][out_w], contiguous.
  // May throw std::bad_alloc, nothing else.
  void run(const float* x, int64_t images, float* y, const float* added, const float* bias,
           Activation activation, int num_threads) const;
  // (dY patches^T)[mask] with dY [images][rows][out_h][out_w], in the order of the values. May throw
  // std::bad_alloc.
  void grad_values(const float* x, const float* grad, int64_t images, float* values, int num_threads) const;

 private:
  // Row tiles whose rows of a pixel tile are held together.
  int64_t tiles_together() const;
  ConvView view(int64_t group) const;
  void plan_planes();
  void fill_masks();
  std::vector<ConvTile> pixel_tiles() const;

  const ConvKernels& kernels_;
  int64_t rows_;
  ConvGeometry given_, geometry_;  // as given, and as run: pointwise images are one long row
  int64_t pitch_ = 0, tiles_ = 0, max_width_ = 0, channel_floats_ = 0, block_channels_ = 0;
  std::vector<ConvPlane> planes_;
  std::vector<int64_t> places_;  // of kernel position [kernel_h][kernel_w] in a channel's slab, floats
  struct alignas(32) MaskChunk {
    int32_t lanes[8];
  };
  std::vector<MaskChunk> masks_;  // aligned: their loads must not cross lines
  int64_t mask_lanes_ = 0;
  std::vector<FreshPanel> groups_;
};

// Where a column of the weight is found: its block and its bytes into the block's slab.
struct ConvColumn {
  int32_t block;
  uint16_t offset;
};

// The panel of one group, cut into blocks of `block_columns`.
FreshPanel fresh_conv_panel(const KeptWeight& weight, int64_t block_columns, const std::vector<ConvColumn>& columns,
                            int num_threads);

// Most floats a channel's planes may take: offsets are 16-bit bytes.
constexpr int64_t kMaxConvSlabFloats = 16384;

const ConvKernels& conv_kernels(Isa isa);

// Whether any tile width keeps the planes of one channel in reach of the offsets.
bool conv_kernel_fits(const ConvGeometry& geometry);

}  // namespace gossamer
