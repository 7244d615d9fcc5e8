// SPDX-License-Identifier: Apache-2.0
#include "dense_loop.hpp"
#include "gemm_kernel.hpp"
#include "simd/int8_vec256.hpp"

namespace gossamer::avx2 {

const DenseKernels dense_kernels = {to_bytes, finish};
const GemmKernels gemm_kernels = {gemm_panel_bits<Int8Vec256Bits7, Int8Vec256Bits8>,
                                  gemm_rows_bits<Int8Vec256Bits7, Int8Vec256Bits8>, RowsTiles<Int8Vec256Bits7>::kMost, gemm_ceiling<Int8Vec256Bits7>};

}  // namespace gossamer::avx2
