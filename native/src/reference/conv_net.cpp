// SPDX-License-Identifier: Apache-2.0
#include "simd/conv_net_loops.hpp"

namespace gossamer::reference {

const ConvNetKernels conv_net_kernels = kConvNetLoops;

}  // namespace gossamer::reference
