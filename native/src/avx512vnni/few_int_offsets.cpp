// SPDX-License-Identifier: Apache-2.0
#ifndef GOSSAMER_EMULATED_AVX512  // SIMDe does not have all of it
#include "simd/few_int_offsets512.hpp"

namespace gossamer::avx512vnni {
namespace {

// For fewer tokens rows are not unpacked, and AVX2 reads them as fast as memory gives them.
constexpr int64_t kTurned = 5;

void run(const FewIntView& view, const LinearCall& call, int64_t first_row, int64_t last_row, void* scratch) {
  (call.tokens < kTurned ? avx2::few_int_kernel : run_offsets)(view, call, first_row, last_row, scratch);
}

}  // namespace

const FewIntKernel few_int_offset_kernel = run;

}  // namespace gossamer::avx512vnni
#endif
