// SPDX-License-Identifier: Apache-2.0
// Conv2d with a sparse fp32 weight [R, C * KH * KW] over NCHW images: what kernels see and promise.
//
// An NCHW image is feature-major already, so its patches are panels without a transposition. What
// is gathered into L1 are planes: the image rows of one channel shifted by one kernel column, laid
// out with the pitch of the output. The kernel rows that share a phase of the stride read the same
// plane one or more pitches further, so a 3x3 kernel on 8x8 pixels copies 3 x 80 floats for its
// nine patches instead of 9 x 64, and a slab holds 2.4 times as many columns.
//
// Pixels of a tile are lanes: first, first + 1, ... of an image whose rows are padded to the pitch,
// a multiple of 8 lanes. The product is add_block of the panel kernel.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/panel.hpp"

namespace gossamer {

struct ConvGeometry {
  int64_t channels;  // of one group
  int64_t height, width;
  int64_t kernel_h, kernel_w, stride_h, stride_w;
  int64_t pad_h, pad_w, pad_end_h, pad_end_w;  // before and behind the image; negative ones cut it
  int64_t dilation_h, dilation_w;
  int64_t groups;

  int64_t out_h() const { return (height + pad_h + pad_end_h - dilation_h * (kernel_h - 1) - 1) / stride_h + 1; }
  int64_t out_w() const { return (width + pad_w + pad_end_w - dilation_w * (kernel_w - 1) - 1) / stride_w + 1; }
};

// Image rows of one channel as kernel position (kernel_row, kernel_column) sees them, and
// `more_rows` rows behind the tile for the later kernel rows that read them too.
struct ConvPlane {
  int64_t kernel_row, kernel_column, more_rows;
  int64_t start;  // in the slab part of its channel, floats
};

// One group of a convolution. Offsets of `panel` are bytes into the slab, [block_channels][planes].
struct ConvView {
  PanelView panel;
  ConvGeometry geometry;
  int64_t out_h, out_w, pitch;
  int64_t max_width;  // of a tile; planes have room for it
  int64_t block_channels, channel_floats, slab_floats;
  const ConvPlane* planes;  // of one channel
  int64_t num_planes;
  // Which image columns exist, [kernel_w][mask_lanes] and a chunk of none: all bits or no bit. Lane i
  // is image column i + kernel_column * dilation - padding; for strides above 2 that of output lane i.
  const int32_t* masks;
  int64_t mask_lanes;
};

// One group of one image.
struct ConvImage {
  const float* x;             // [channels][height][width]
  const float *begin, *end;  // of the whole batch: what may be read
};

struct ConvCall {
  ConvImage image;
  float* y;           // [rows][out_h][out_w]
  const float* added; // to y before its activation, of its shape; may be null
  const float* bias;  // [rows], may be null
  Activation activation;
};

// `width` lanes from `first` on and the rows of panel tiles first_tile..last_tile.
struct ConvTile {
  int64_t first;
  int width;
  int64_t first_tile, last_tile;
};

// Pixels are stored by eight.
constexpr int kChunk = 8;

// Eight lanes of the accumulators and the pixels they become.
struct OutputChunk {
  int64_t pixel;
  int lane, lanes;  // none for a chunk outside of the image
  bool is_wide;     // all eight may be written: what is too much is overwritten by the next chunks
};

// Floats of scratch one kernel call needs: the slab, the accumulators, their bias, and two numbers for
// every eight lanes of a channel's slab.
static inline size_t conv_scratch_floats(const ConvView& view, const ConvTile& tile) {
  const int64_t rows = (tile.last_tile - tile.first_tile) * view.panel.tile_rows;
  return static_cast<size_t>(view.slab_floats + rows * (tile.width + 1) + view.channel_floats / 4);
}

// y = act(conv(x, W) + bias) of one tile. Allocates and throws nothing; `scratch` is 64-byte aligned.
using ConvKernel = void (*)(const ConvView&, const ConvCall&, const ConvTile&, float* scratch);

// sums[slot] += the products of one tile for the column blocks first..last: the sampled product of sampled.hpp
// with pixels for tokens; `grad` is dY [rows][out_h][out_w].
using ConvGradKernel = void (*)(const ConvView&, const ConvImage&, const float* grad, const ConvTile&, int64_t first_block,
                                int64_t last_block, float* scratch, float* sums);

struct ConvKernels {
  ConvKernel run;
  ConvGradKernel add_grad;
  int64_t lanes;  // widths are multiples of it
  int64_t max_width;
};

namespace reference { extern const ConvKernels conv_kernels; }
namespace avx2 { extern const ConvKernels conv_kernels; }
namespace avx512 { extern const ConvKernels conv_kernels; }

}  // namespace gossamer
