// SPDX-License-Identifier: Apache-2.0
#include "simd/absorb_loop.hpp"

namespace gossamer::avx2 {

const AbsorbKernels absorb_kernels = {absorb_blocks<AbsorbEight>};

}  // namespace gossamer::avx2
