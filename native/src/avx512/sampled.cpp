// SPDX-License-Identifier: Apache-2.0
#include "simd/sampled_kernel.hpp"

namespace gossamer::avx512 {
namespace {

struct Vec {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static Type zero() { return _mm512_setzero_ps(); }
  static Type load(const float* p) { return _mm512_load_ps(p); }
  static Type mul(Type a, const float* b) { return _mm512_mul_ps(a, _mm512_load_ps(b)); }
  static Type fma(Type a, const float* b, Type c) { return _mm512_fmadd_ps(a, _mm512_load_ps(b), c); }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  static __m128 sum4(const Type (&v)[4]) {
    const Type ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const Type cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const Type abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m128 low = _mm_add_ps(_mm512_castps512_ps128(abcd), _mm512_extractf32x4_ps(abcd, 1));
    return _mm_add_ps(low, _mm_add_ps(_mm512_extractf32x4_ps(abcd, 2), _mm512_extractf32x4_ps(abcd, 3)));
  }
};

void sampled(const PanelView& view, const SampledCall& call, TokenTile tile, int64_t first_tile,
             int64_t last_tile, float* scratch, float* sums) {
  switch (tile.width) {
    case 64: return sampled_tile<Vec, 4>(view, call, tile, first_tile, last_tile, scratch, sums);
    case 32: return sampled_tile<Vec, 2>(view, call, tile, first_tile, last_tile, scratch, sums);
    default: return sampled_tile<Vec, 1>(view, call, tile, first_tile, last_tile, scratch, sums);
  }
}

const int widths[] = {64, 32, 16, 0};
const PanelShape shapes[] = {{0.15, 128, 1}, {0, 192, 1}};  // as measured with AVX2

}  // namespace

const SampledKernels sampled_kernels = {sampled, widths, shapes, ceiling_sampled<Vec, 4>};

}  // namespace gossamer::avx512
