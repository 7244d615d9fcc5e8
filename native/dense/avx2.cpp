// SPDX-License-Identifier: Apache-2.0
#include "dense_loop.hpp"

namespace gossamer::avx2 {

const DenseKernels dense_kernels = {to_bytes, finish};

}  // namespace gossamer::avx2
