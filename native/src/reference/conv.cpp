// SPDX-License-Identifier: Apache-2.0
// The specification of the convolution kernel: plain loops over the layout, no intrinsics.
#include "gossamer/conv.hpp"
#include "reference/activation.hpp"

namespace gossamer::reference {
namespace {

// What lane `lane` of a plane holds: the image, or zero outside of it.
float pixel(const ConvView& conv, const float* channel, const ConvPlane& plane, int64_t lane) {
  const ConvGeometry& g = conv.geometry;
  const int64_t h = lane / conv.pitch * g.stride_h + plane.kernel_row * g.dilation_h - g.pad_h;
  const int64_t w = lane % conv.pitch * g.stride_w + plane.kernel_column * g.dilation_w - g.pad_w;
  return h >= 0 && h < g.height && w >= 0 && w < g.width ? channel[h * g.width + w] : 0.0f;
}

void gather_block(const ConvView& conv, const ConvImage& image, const ConvTile& at, int64_t block, float* slab) {
  const int64_t first = block * conv.block_channels;
  for (int64_t c = 0; c < conv.block_channels && first + c < conv.geometry.channels; ++c) {
    const float* channel = image.x + (first + c) * conv.geometry.height * conv.geometry.width;
    for (int64_t p = 0; p < conv.num_planes; ++p) {
      const ConvPlane& plane = conv.planes[p];
      float* out = slab + c * conv.channel_floats + plane.start;
      for (int64_t i = 0; i < at.width + plane.more_rows * conv.pitch; ++i)
        out[i] = pixel(conv, channel, plane, at.first + i);
    }
  }
}

void conv(const ConvView& conv, const ConvCall& call, const ConvTile& at, float* scratch) {
  const PanelView& panel = conv.panel;
  float* slab = scratch;
  float* sums = slab + conv.slab_floats;  // [rows of the tiles][width]
  const int64_t first_row = at.first_tile * panel.tile_rows;
  const int64_t num_rows = (at.last_tile - at.first_tile) * panel.tile_rows;
  for (int64_t i = 0; i < num_rows * at.width; ++i) {
    const int64_t row = first_row + i / at.width;
    sums[i] = call.bias && row < panel.rows ? call.bias[row] : 0.0f;
  }
  for (int64_t b = 0; b < panel.num_blocks; ++b) {
    gather_block(conv, call.image, at, b, slab);
    for (int64_t part = at.first_tile; part < at.last_tile; ++part) {
      const PanelBlock& block = panel.blocks[part * panel.num_blocks + b];
      float* tile = sums + (part - at.first_tile) * panel.tile_rows * at.width;
      int64_t slot = block.first_value;
      for (int64_t i = 0; i < block.num_rows; ++i) {
        float* row = tile + panel.row_ids[block.first_row + i] * at.width;
        for (int64_t j = 0; j < panel.row_counts[block.first_row + i]; ++j, ++slot)
          for (int64_t lane = 0; lane < at.width; ++lane)
            row[lane] += panel.values[slot] * slab[panel.offsets[slot] / 4 + lane];
      }
    }
  }
  for (int64_t i = 0; i < num_rows * at.width; ++i) {
    const int64_t row = first_row + i / at.width, lane = at.first + i % at.width;
    const int64_t h = lane / conv.pitch, w = lane % conv.pitch;
    if (row >= panel.rows || h >= conv.out_h || w >= conv.out_w) continue;
    const int64_t pixel = (row * conv.out_h + h) * conv.out_w + w;
    call.y[pixel] = activate(sums[i] + (call.added ? call.added[pixel] : 0.0f), call.activation);
  }
}

void add_grad(const ConvView& conv, const ConvImage& image, const float* grad, const ConvTile& at,
              int64_t first_block, int64_t last_block, float* scratch, float* sums) {
  const PanelView& panel = conv.panel;
  for (int64_t b = first_block; b < last_block; ++b) {
    gather_block(conv, image, at, b, scratch);
    for (int64_t part = at.first_tile; part < at.last_tile; ++part) {
      const PanelBlock& block = panel.blocks[part * panel.num_blocks + b];
      int64_t slot = block.first_value;
      for (int64_t i = 0; i < block.num_rows; ++i) {
        const int64_t row = part * panel.tile_rows + panel.row_ids[block.first_row + i];
        for (int64_t j = 0; j < panel.row_counts[block.first_row + i]; ++j, ++slot)
          for (int64_t lane = 0; lane < at.width; ++lane) {
            const int64_t h = (at.first + lane) / conv.pitch, w = (at.first + lane) % conv.pitch;
            if (h < conv.out_h && w < conv.out_w)
              sums[slot] += grad[(row * conv.out_h + h) * conv.out_w + w] * scratch[panel.offsets[slot] / 4 + lane];
          }
      }
    }
  }
}

}  // namespace

const ConvKernels conv_kernels = {conv, add_grad, 1, 8};

}  // namespace gossamer::reference
