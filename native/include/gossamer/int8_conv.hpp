// SPDX-License-Identifier: Apache-2.0
// Conv2d in int8 arithmetic over NCHW images: what kernels see and promise.
//
// Numbers are those of int8.hpp, with the image for the token: every image of the batch gets one
// scale, measured in the call over all its channels, and every output row its own. Sums are exact,
// zeros around an image too, so results are the same bits in every instruction set. An image that
// holds a NaN or an infinity gives NaN in its whole output.
//
// Images are quantised once per call, to a quarter of their size, into the form in which any kernel
// position is a shift: the pixels of each phase of the stride that a kernel position sees are one
// string of bytes, image after image and row after row, with the zeros around them. The zeros behind
// a row are those in front of the next one, so a 3x3 kernel on 7x7 pixels has a pitch of 8, and 1x1
// kernels have no lost lanes. A tile is a run of this string; unaligned loads cost the product nothing,
// since it waits for its shuffles.
#pragma once
#include "gossamer/conv.hpp"
#include "gossamer/int8.hpp"

namespace gossamer {

// Bytes of one channel that one or more kernel positions read, for the widest tile.
struct Int8ConvRun {
  int64_t phase, shift;  // where they start: which string, lanes behind the tile
  int64_t bytes;
  int64_t start;  // in the slab part of its channel
};

// One group of a convolution and as many images as are quantised together.
struct Int8ConvView {
  Int8View product;  // in the form of images
  int64_t channels, block_channels;
  int64_t width;  // of the widest tile
  const Int8ConvRun* runs;
  int64_t num_runs, channel_bytes;  // in the slab
  int64_t images, pitch, image_lanes;
  int64_t out_h, out_w;
  int64_t phase_bytes, num_phases;  // of the strings of a channel
};

struct Int8ConvCall {
  const uint8_t* x;           // [channels][num_phases][phase_bytes]
  const float* image_scales;  // [images]
  float* y;                   // [images, image_floats apart][rows][out_h][out_w]
  const float* added;         // to y before its activation, of its shape; may be null
  int64_t image_floats;
  const float* bias;  // [rows], may be null
  Activation activation;
};

// `width` lanes from `first` on and the rows of row tiles first_tile..last_tile.
struct Int8ConvTile {
  int64_t first;
  int width;
  int64_t first_tile, last_tile;
};

constexpr int kMaxInt8Lanes = 64;
// Bytes that may be read behind what a tile needs, and written behind a slab.
constexpr int64_t kInt8ConvSlack = 2 * kMaxInt8Lanes;

static inline int64_t int8_slabs_bytes(const Int8ConvView& view) {
  return (view.channels * view.channel_bytes + kInt8ConvSlack) / 64 * 64;
}

// Bytes of scratch one kernel call needs: all slabs of a tile, accumulators, one number per lane.
static inline size_t int8_conv_scratch_bytes(const Int8ConvView& view, int width) {
  return static_cast<size_t>(int8_slabs_bytes(view) + (view.product.tile_rows + 1) * width * 4 + kInt8ConvSlack);
}

// The chunks of a tile that are pixels, at most one per lane; returns their number. Pixels count from
// the first row of the first image.
static inline int plan_pixels(const Int8ConvView& view, const Int8ConvCall& call, const Int8ConvTile& tile,
                              OutputChunk* chunks) {
  const int64_t last = tile.first + tile.width;
  int num = 0;
  for (int64_t lane = tile.first; lane < last;) {
    const int64_t image = lane / view.image_lanes, inside = lane % view.image_lanes;
    if (image >= view.images) break;
    // Without zeros between them all rows are one.
    const bool is_flat = view.pitch == view.out_w;
    const int64_t pitch = is_flat ? view.pitch * view.out_h : view.pitch, out_w = is_flat ? pitch : view.out_w;
    const int64_t row = inside / pitch, column = inside % pitch;
    const bool is_inside = inside < view.out_h * view.pitch;
    const int64_t to_next = is_inside ? pitch - column : view.image_lanes - inside;
    int64_t left = is_inside ? out_w - column : 0;
    left = left < last - lane ? left : last - lane;
    for (int64_t i = 0; i < left; i += kChunk)
      chunks[num++] = {image * call.image_floats + row * out_w + column + i,
                       static_cast<int>(lane - tile.first + i),
                       static_cast<int>(left - i < kChunk ? left - i : kChunk), false};
    lane += to_next;
  }
  int64_t end = -1, begin = -1;  // of the pixels without a gap from a chunk on
  for (int i = num - 1; i >= 0; --i) {
    const int64_t chunk_end = chunks[i].pixel + chunks[i].lanes;
    if (chunk_end != begin) end = chunk_end;
    begin = chunks[i].pixel;
    chunks[i].is_wide = begin + kChunk <= end;
  }
  return num;
}

// y = act(conv(x, W) + bias) of one tile. Allocates and throws nothing; `scratch` is 64-byte aligned.
using Int8ConvKernel = void (*)(const Int8ConvView&, const Int8ConvCall&, const Int8ConvTile&, void* scratch);

struct Int8ConvKernels {
  Int8ConvKernel run;
  // The bits of the largest |x|, see token_scale().
  uint32_t (*largest)(const float* x, int64_t num);
  void (*quantise)(const float* x, int64_t num, float inverse, int bits, uint8_t* bytes);
  const int* widths;  // of tiles, widest first, 0-terminated
  const Int8Kernels* linear;  // for its bits
};

namespace reference { extern const Int8ConvKernels int8_conv_kernels; }
namespace avx2 { extern const Int8ConvKernels int8_conv_kernels; }
namespace avx512 { extern const Int8ConvKernels int8_conv_kernels; }      // without VNNI
namespace avx512vnni { extern const Int8ConvKernels int8_conv_kernels; }

}  // namespace gossamer
