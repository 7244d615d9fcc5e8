// SPDX-License-Identifier: Apache-2.0
#include "gemm_kernel.hpp"
#include "simd/int8_vec_vnni.hpp"

namespace gossamer::avx512vnni {

const GemmKernels gemm_kernels = {gemm_panel<Int8Vec512Vnni>, gemm_rows<Int8Vec512Vnni>, RowsTiles<Int8Vec512Vnni>::kMost, gemm_ceiling<Int8Vec512Vnni>};

}  // namespace gossamer::avx512vnni
