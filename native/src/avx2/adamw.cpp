// SPDX-License-Identifier: Apache-2.0
#include "simd/adamw_loop.hpp"

namespace gossamer::avx2 {

const AdamwKernels adamw_kernels = {adamw_entries};

}  // namespace gossamer::avx2
