// SPDX-License-Identifier: Apache-2.0
// A convolutional network on whole planes, for instruction sets with 256 bits: what its kernels see and promise.
//
// A channel of an image is one string of pixels, row after row, with zeros behind each row and below the image; those
// zeros are also the ones in front of the next row and of the next channel. So a kernel position is a distance in
// bytes, and a kept weight costs one broadcast and products straight from where the pixels lie: nothing is gathered.
// (Gathering shifted lanes into L1 first, as conv_net.hpp does for wider vectors, took twice as long as the products.)
//
// Numbers are fp32, or 16 bits of fixed point: without VNNI products of bytes need shuffles and two more
// instructions each, products of 16 bits that keep their upper half need none, and lose less than bytes do.
#pragma once
#include <cstdint>

namespace gossamer {

constexpr int kPlaneVectors = 12;        // sums of a tile that stay in registers, at most
constexpr int kPlaneVectorBytes = 32;
constexpr int64_t kPlaneSlack = 64;      // elements that may be read and written behind the last plane

// A kept weight: where its pixels are, in bytes from the pixel it is for, and its value, a float or twice the same
// 16 bits.
struct PlaneWeight {
  int32_t offset;
  uint32_t value;
};

// How sums of a row start and end. Fixed point: what is added is multiplied by `added`, the sum by `ratio`.
struct PlaneRule {
  uint32_t start, added;  // as the value of a weight
  float ratio;
};

// One block of channels of a convolution.
template <class T>
struct PlaneConv {
  const PlaneWeight* weights;
  const int64_t* starts;  // weights of row r: starts[r]..starts[r + 1]
  const PlaneRule* rules;
  const T* in;  // the first pixel
  T* out;       // the first pixel of the first row's plane; holds the sums of the blocks before
  int64_t plane;
  const T* added;  // to rows added_first..added_last; null: nothing
  int64_t added_first, added_last;
  const T* mask;  // all bits where a pixel is
  bool relu, is_first, is_last;
  T low, high;  // limits of fixed point
};

// All of them allocate and throw nothing.
template <class T>
struct PlaneKernels {
  // `vectors` of pixels from `first` on
  void (*conv)(const PlaneConv<T>&, int64_t first, int vectors, int64_t first_row, int64_t last_row);
  // out = the largest of what lies `offsets` pixels away
  void (*largest)(const T* in, const int64_t* offsets, int64_t num_offsets, const T* mask, int64_t vectors, T* out);
  // Every other pixel of rows: to[r * to_step + i] = from[r * from_step + 2 i], zeros from `width` to `to_step`. Runs up
  // to a vector over the end of a row.
  void (*phase)(const T* from, int64_t from_step, int64_t rows, int64_t width, int64_t to_step, T* to);
  // A row of pixels; fixed point: rint(x * inverse) between the limits.
  void (*read)(const float* x, int64_t num, float inverse, T low, T high, T* out);
  // Zeros in `num` elements of each of `planes` planes.
  void (*clear)(T* first, int64_t plane, int64_t planes, int64_t num);
};

namespace avx2 {
extern const PlaneKernels<float> float_planes;
extern const PlaneKernels<int16_t> fixed_planes;
}

}  // namespace gossamer
