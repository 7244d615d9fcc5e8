// SPDX-License-Identifier: Apache-2.0
#include "simd/int8_conv_kernel.hpp"
#include "simd/int8_vec_vnni.hpp"

namespace gossamer::avx512vnni {
namespace {

void run(const Int8ConvView& view, const Int8ConvCall& call, const Int8ConvTile& tile, void* scratch) {
  const auto width = tile.width == 32 ? int8_conv_tile<Int8Vec256Vnni, 1> : int8_conv_tile<Int8Vec512Vnni, 1>;
  width(view, call, tile, scratch);
}

const int widths[] = {64, 32, 0};

}  // namespace

const Int8ConvKernels int8_conv_kernels = {run, largest_of_run, quantise_run, widths, &int8_kernels};

}  // namespace gossamer::avx512vnni
