// SPDX-License-Identifier: Apache-2.0
// The specification of the int8 convolution: plain loops over the layout, no intrinsics.
#include "gossamer/int8_conv.hpp"
#include "reference/activation.hpp"
#include "reference/quantise.hpp"

namespace gossamer::reference {
namespace {

// Byte `offset + lane` of the slab of `block`, found where the slab would be copied from.
uint8_t pixel(const Int8ConvView& conv, const uint8_t* x, int64_t block, int64_t offset, int64_t lane) {
  const int64_t channel = block * conv.block_channels + offset / conv.channel_bytes;
  const int64_t place = offset % conv.channel_bytes;
  const Int8ConvRun* run = conv.runs + conv.num_runs - 1;
  while (run->start > place) --run;
  return x[(channel * conv.num_phases + run->phase) * conv.phase_bytes + run->shift + place - run->start + lane];
}

// The sum of one row and lane. Unsigned: it may wrap on the way, as it does in the kernels; the end is right.
void add_block(const Int8ConvView& conv, const uint8_t* x, int64_t lane, int64_t part, int64_t b, uint32_t* sums) {
  const Int8View& product = conv.product;
  const DwordBlock& block = product.blocks[part * product.num_blocks + b];
  int64_t quad = block.first_dword;
  for (int64_t i = block.first_row; i < block.first_row + block.num_rows; ++i)
    for (int64_t j = 0; j < product.row_dwords[i]; ++j, ++quad)
      for (int q = 0; q < 4; ++q)
        sums[product.row_ids[i]] += static_cast<uint32_t>(
            weight_of(product, quad, q) * pixel(conv, x, b, product.offsets[quad * 4 + q], lane));
}

void run(const Int8ConvView& conv, const Int8ConvCall& call, const Int8ConvTile& tile, void* scratch) {
  const Int8View& product = conv.product;
  OutputChunk chunks[kMaxInt8Lanes];
  const int num_chunks = plan_pixels(conv, call, tile, chunks);
  auto* sums = static_cast<uint32_t*>(scratch);
  for (int64_t part = tile.first_tile; part < tile.last_tile; ++part)
    for (int c = 0; c < num_chunks; ++c)
      for (int i = 0; i < chunks[c].lanes; ++i) {
        const int64_t lane = tile.first + chunks[c].lane + i, row0 = part * product.tile_rows;
        const float image_scale = call.image_scales[lane / conv.image_lanes];
        for (int64_t r = 0; r < rows_of_tile(product, part); ++r)
          sums[r] = static_cast<uint32_t>(product.row_starts[row0 + r]);
        for (int64_t b = 0; b < product.num_blocks; ++b) add_block(conv, call.x, lane, part, b, sums);
        for (int64_t r = 0; r < rows_of_tile(product, part); ++r) {
          const auto sum = static_cast<float>(static_cast<int32_t>(sums[r]));
          const float bias = call.bias ? call.bias[row0 + r] : 0.0f;
          const float v = std::fma(sum, image_scale * product.row_scales[row0 + r], bias);
          const int64_t pixel = (row0 + r) * conv.out_h * conv.out_w + chunks[c].pixel + i;
          call.y[pixel] = activate(v + (call.added ? call.added[pixel] : 0.0f), call.activation);
        }
      }
}

const int widths[] = {8, 0};

}  // namespace

const Int8ConvKernels int8_conv_kernels = {run, largest_of, quantise_run, widths, &int8_kernels};

}  // namespace gossamer::reference
