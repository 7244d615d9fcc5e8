// SPDX-License-Identifier: Apache-2.0
#include "kv_kernel.hpp"
#include "vec512.hpp"

namespace gossamer::avx512vnni {

const KvKernels kv_kernels = KvLoops<avx512::KvVec>::kernels();

}  // namespace gossamer::avx512vnni
