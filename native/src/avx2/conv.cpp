// SPDX-License-Identifier: Apache-2.0
#include "simd/conv_grad_kernel.hpp"
#include "simd/conv_kernel.hpp"
#include "simd/sampled_vec256.hpp"

namespace gossamer::avx2 {
namespace {

struct Vec {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type zero() { return _mm256_setzero_ps(); }
  static Type broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Type load4(const float* p) { return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p)); }
  __attribute__((always_inline)) static Type splat(Type four, int i) {
    return i == 0   ? _mm256_permute_ps(four, 0x00)
           : i == 1 ? _mm256_permute_ps(four, 0x55)
           : i == 2 ? _mm256_permute_ps(four, 0xaa)
                    : _mm256_permute_ps(four, 0xff);
  }
  static Type load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Type v) { _mm256_store_ps(p, v); }
  static Type fma(Type a, const float* b, Type c) { return _mm256_fmadd_ps(a, _mm256_load_ps(b), c); }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
};

// Chains of FMAs: eight where sixteen registers allow it. Every width from 8 to 64 is there, since
// images seldom divide by 64: 7 rows of 8 lanes are one tile of 56. Two rows side by side on 32 lanes,
// which the linear panel uses at low density, lost up to 40 % at 90 % sparsity and won nowhere by more
// than noise (slabs hold more columns here); at 97 % they won up to 27 % on 7x7 and 14x14 pixels.
void conv(const ConvView& view, const ConvCall& call, const ConvTile& tile, float* scratch) {
  switch (tile.width) {
    case 64: return conv_tile<Vec, 8, 1>(view, call, tile, scratch);
    case 56: return conv_tile<Vec, 7, 1>(view, call, tile, scratch);
    case 48: return conv_tile<Vec, 6, 2>(view, call, tile, scratch);
    case 40: return conv_tile<Vec, 5, 2>(view, call, tile, scratch);
    case 32: return conv_tile<Vec, 4, 2>(view, call, tile, scratch);
    case 24: return conv_tile<Vec, 3, 2>(view, call, tile, scratch);
    case 16: return conv_tile<Vec, 2, 4>(view, call, tile, scratch);
    default: return conv_tile<Vec, 1, 4>(view, call, tile, scratch);
  }
}

void add_grad(const ConvView& view, const ConvImage& image, const float* grad, const ConvTile& tile,
              int64_t first_block, int64_t last_block, float* scratch, float* sums) {
  const auto run = [&](auto tile_of) { tile_of(view, image, grad, tile, first_block, last_block, scratch, sums); };
  switch (tile.width) {
    case 64: return run(conv_grad_tile<SampledVec, 8>);
    case 56: return run(conv_grad_tile<SampledVec, 7>);
    case 48: return run(conv_grad_tile<SampledVec, 6>);
    case 40: return run(conv_grad_tile<SampledVec, 5>);
    case 32: return run(conv_grad_tile<SampledVec, 4>);
    case 24: return run(conv_grad_tile<SampledVec, 3>);
    case 16: return run(conv_grad_tile<SampledVec, 2>);
    default: return run(conv_grad_tile<SampledVec, 1>);
  }
}

}  // namespace

const ConvKernels conv_kernels = {conv, add_grad, 8, 64};

}  // namespace gossamer::avx2
