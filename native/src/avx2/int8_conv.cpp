// SPDX-License-Identifier: Apache-2.0
#include "simd/int8_conv_kernel.hpp"
#include "simd/int8_vec256.hpp"

namespace gossamer::avx2 {
namespace {

void run(const Int8ConvView& view, const Int8ConvCall& call, const Int8ConvTile& tile, void* scratch) {
  const bool narrow = tile.width == 32;
  const auto width = view.product.activation_bits == 7
                         ? (narrow ? int8_conv_tile<Int8Vec256Bits7, 1> : int8_conv_tile<Int8Vec256Bits7, 2>)
                         : (narrow ? int8_conv_tile<Int8Vec256Bits8, 1> : int8_conv_tile<Int8Vec256Bits8, 2>);
  width(view, call, tile, scratch);
}

const int widths[] = {64, 32, 0};

}  // namespace

const Int8ConvKernels int8_conv_kernels = {run, largest_of_run, quantise_run, widths, &int8_kernels};

}  // namespace gossamer::avx2
