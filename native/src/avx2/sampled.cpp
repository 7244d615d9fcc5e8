// SPDX-License-Identifier: Apache-2.0
#include "simd/sampled_kernel.hpp"

namespace gossamer::avx2 {
namespace {

struct Vec {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type zero() { return _mm256_setzero_ps(); }
  static Type load(const float* p) { return _mm256_load_ps(p); }
  static Type mul(Type a, const float* b) { return _mm256_mul_ps(a, _mm256_load_ps(b)); }
  static Type fma(Type a, const float* b, Type c) { return _mm256_fmadd_ps(a, _mm256_load_ps(b), c); }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  static __m128 sum4(const Type (&v)[4]) {
    // Blends leave the two shuffle ports, one of which is also an FMA port, to the rest.
    const Type ab = add(_mm256_blend_ps(v[0], v[1], 0xcc), _mm256_shuffle_ps(v[0], v[1], 0x4e));
    const Type cd = add(_mm256_blend_ps(v[2], v[3], 0xcc), _mm256_shuffle_ps(v[2], v[3], 0x4e));
    const Type abcd = add(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
  }
};

void sampled(const PanelView& view, const SampledCall& call, TokenTile tile, int64_t first_tile,
             int64_t last_tile, float* scratch, float* sums) {
  switch (tile.width) {
    case 64: return sampled_tile<Vec, 8>(view, call, tile, first_tile, last_tile, scratch, sums);
    case 32: return sampled_tile<Vec, 4>(view, call, tile, first_tile, last_tile, scratch, sums);
    case 16: return sampled_tile<Vec, 2>(view, call, tile, first_tile, last_tile, scratch, sums);
    default: return sampled_tile<Vec, 1>(view, call, tile, first_tile, last_tile, scratch, sums);
  }
}

const int widths[] = {64, 32, 16, 8, 0};
// Nothing but dY and the slab is read, so slabs may fill L1 and more. Measured at 80 / 90 / 95 %, 64 tokens,
// GFLOP/s and us to lay out 768x768: 96 columns 59 / 53 / 41 (318 / 276 / 260), 128 61 / 53 / 42 (250 / 228 / 213),
// 192 57 / 51 / 42 (217 / 179 / 169), 256 55 / 50 / 41; 32 tokens of 256 columns 51 / 47 / 40.
const PanelShape shapes[] = {{0.15, 128, 1}, {0, 192, 1}};

}  // namespace

const SampledKernels sampled_kernels = {sampled, widths, shapes, ceiling_sampled<Vec, 8>};

}  // namespace gossamer::avx2
