// SPDX-License-Identifier: Apache-2.0
// A whole convolutional network on panels: what its kernels see and promise. AVX2 runs planes instead
// (conv_planes.hpp).
//
// Activations stay in the form in which products take them, tile after tile of 64 lanes, [channel][lane], in fp32 or
// in bytes. Lanes are the pixels of all images, row after row, with zeros behind each row and below each image; those
// zeros are also the ones in front of the next, so a kernel position is a shift of lanes, whatever the image's edges.
// A 1x1 convolution multiplies a tile as it lies there; a larger kernel first copies the shifted lanes of the tile
// beneath each other. Steps of two become steps of one on an image taken apart into its phases.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"
#include "gossamer/encoder.hpp"

namespace gossamer {

// What may be read in front of and behind rows, in elements: lanes that are then left out.
constexpr int64_t kLaneSlack = 64;

// The lanes that a kernel position sees from one tile: of the first row those from `from` on, then those of the
// second. Rows of channels are `step` elements apart; 0 stays on a row of zeros.
template <class T>
struct ShiftedLanes {
  const T *first, *second;
  int64_t first_step, second_step;
  int from;
};

// What is added to rows first..first + count of a tile.
template <class T>
struct AddedRows {
  const T* rows;  // null: nothing
  int64_t first, count;
  float scale;  // bytes stand for (code - zero) * scale
  int zero;
};

// How numbers become bytes: rint(x * inverse) + zero, between 0 and `most`.
struct ByteCode {
  float inverse;
  int zero, most;
};

// All of them allocate and throw nothing. Masks [64] have all bits where a lane is a pixel.
template <class T>
struct LaneKernels {
  // panel [channel][position][64]
  void (*gather)(const ShiftedLanes<T>* positions, int64_t num_positions, int64_t channels, T* panel);
  // out [channel][64] = the largest of the positions
  void (*largest)(const T* panel, int64_t num_positions, int64_t channels, const uint32_t* mask, T zero, T* out);
  // Every other lane of rows: to[r * to_step + i] = from[r * from_step + 2 i], zero from `width` to `to_step`. Reads and
  // writes up to kLaneSlack elements behind the last row.
  void (*phase)(const T* from, int64_t from_step, int64_t rows, int64_t width, int64_t to_step, T zero, T* to);
};

struct ConvNetKernels {
  LaneKernels<float> floats;
  LaneKernels<uint8_t> bytes;
  // tile = act(tile + added), zeros where no pixel is
  void (*finish)(float* tile, int64_t rows, const AddedRows<float>&, bool relu, const uint32_t* mask);
  void (*finish_bytes)(const float* tile, int64_t rows, const AddedRows<uint8_t>&, bool relu, const uint32_t* mask,
                       const ByteCode&, uint8_t* out);
  void (*to_bytes)(const float* x, int64_t num, const ByteCode&, uint8_t* out);
};

namespace reference { extern const ConvNetKernels conv_net_kernels; }
namespace avx512 { extern const ConvNetKernels conv_net_kernels; }

const ConvNetKernels& conv_net_kernels(Isa isa);

}  // namespace gossamer
