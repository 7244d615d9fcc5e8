// SPDX-License-Identifier: Apache-2.0
#ifndef GOSSAMER_EMULATED_AVX512  // SIMDe does not have all of it
#include "simd/few_int_kernel512.hpp"

namespace gossamer::avx512vnni {

const FewIntKernel few_int_kernel = run_few_int;

}  // namespace gossamer::avx512vnni
#endif
