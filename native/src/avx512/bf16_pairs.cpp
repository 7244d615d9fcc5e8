// SPDX-License-Identifier: Apache-2.0
// For CPUs with AVX-512 but without vdpbf16ps: correct, and no faster than fp32.
#include "simd/bf16_kernel.hpp"
#include "simd/bf16_vec256.hpp"
#include "simd/bf16_vec512.hpp"

namespace gossamer::avx512 {
namespace {

struct Vec : Bf16Vec512 {
  static __m256i halves(const float* p) { return Bf16Vec256::halves(p); }
  static Float upper(Int v) { return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536))); }
  static Float lower(Int v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
  static Float dot(Float sum, Int x, Int w) {
    return _mm512_fmadd_ps(lower(x), lower(w), _mm512_fmadd_ps(upper(x), upper(w), sum));
  }
};

void run(const Bf16View& view, const LinearCall& call, TokenTile tile, int64_t first_tile, int64_t last_tile,
         void* scratch) {
  const auto width = tile.width == 32 ? bf16_forms<Vec, 1, 2> : bf16_forms<Vec, 2, 2>;
  width(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 0};

}  // namespace

const Bf16Kernels bf16_kernels = {run, widths, {192, 384}, ceiling_dwords<Vec, 2, DwordForm::panel, 2>,
                                  ceiling_dwords<Vec, 2, DwordForm::neighbours, 2>};

}  // namespace gossamer::avx512
