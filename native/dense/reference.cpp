// SPDX-License-Identifier: Apache-2.0
#include "dense_loop.hpp"

namespace gossamer::reference {

const DenseKernels dense_kernels = {to_bytes, finish};

}  // namespace gossamer::reference
