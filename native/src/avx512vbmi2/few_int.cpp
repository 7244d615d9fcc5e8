// SPDX-License-Identifier: Apache-2.0
#include "simd/few_int_kernel512.hpp"

namespace gossamer::avx512vbmi2 {

const FewIntKernel few_int_kernel = run_few_int;

}  // namespace gossamer::avx512vbmi2
