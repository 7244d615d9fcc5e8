// SPDX-License-Identifier: Apache-2.0
#include "kv_kernel.hpp"
#include "vec256.hpp"

namespace gossamer::avx2 {

const KvKernels kv_kernels = KvLoops<KvVec>::kernels();

}  // namespace gossamer::avx2
