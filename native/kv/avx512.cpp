// SPDX-License-Identifier: Apache-2.0
#include "kv_kernel.hpp"
#include "vec512.hpp"

namespace gossamer::avx512 {

const KvKernels kv_kernels = KvLoops<KvVec>::kernels();

}  // namespace gossamer::avx512
