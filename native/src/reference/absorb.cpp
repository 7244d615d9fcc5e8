// SPDX-License-Identifier: Apache-2.0
#include "simd/absorb_loop.hpp"

namespace gossamer::reference {

const AbsorbKernels absorb_kernels = {absorb_blocks<AbsorbFour>};

}  // namespace gossamer::reference
