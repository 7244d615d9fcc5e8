// SPDX-License-Identifier: Apache-2.0
// vdpbf16ps: two products and their sum in one instruction.
#include "simd/bf16_kernel.hpp"
#include "simd/bf16_vec512.hpp"

namespace gossamer::avx512bf16 {
namespace {

struct Vec : Bf16Vec512 {
  static __m256i halves(const float* p) { return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(p)); }
  static Float dot(Float sum, Int x, Int w) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
};

// Eight chains: one vdpbf16ps waits five or six cycles for the one before it.
void run(const Bf16View& view, const LinearCall& call, TokenTile tile, int64_t first_tile, int64_t last_tile,
         void* scratch) {
  const auto width = tile.width == 32 ? bf16_forms<Vec, 1, 4> : bf16_forms<Vec, 2, 2>;
  width(view, call, tile, first_tile, last_tile, scratch);
}

// The bytes of the int8 kernels' blocks, which were measured with AVX2; these were not.
const int widths[] = {64, 32, 0};

}  // namespace

const Bf16Kernels bf16_kernels = {run, widths, {192, 384}, ceiling_dwords<Vec, 2, DwordForm::panel, 2>,
                                  ceiling_dwords<Vec, 2, DwordForm::neighbours, 2>};

}  // namespace gossamer::avx512bf16
