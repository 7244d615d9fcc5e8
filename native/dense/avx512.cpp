// SPDX-License-Identifier: Apache-2.0
#include "dense_loop.hpp"
#include "gemm_kernel.hpp"
#include "simd/int8_vec512.hpp"

namespace gossamer::avx512 {

const DenseKernels dense_kernels = {to_bytes, finish};
const GemmKernels gemm_kernels = {gemm_panel_bits<Int8Vec512Bits7, Int8Vec512Bits8>,
                                  gemm_rows_bits<Int8Vec512Bits7, Int8Vec512Bits8>, RowsTiles<Int8Vec512Bits7>::kMost, gemm_ceiling<Int8Vec512Bits7>};

}  // namespace gossamer::avx512
