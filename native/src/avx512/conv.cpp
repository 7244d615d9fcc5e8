// SPDX-License-Identifier: Apache-2.0
#include "simd/conv_grad_kernel.hpp"
#include "simd/conv_kernel.hpp"
#include "simd/sampled_vec512.hpp"

namespace gossamer::avx512 {
namespace {

// Loads need not be aligned: the pitch of a plane is a multiple of eight lanes, not of sixteen.
struct Vec {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static Type zero() { return _mm512_setzero_ps(); }
  static Type broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Type load4(const float* p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
  __attribute__((always_inline)) static Type splat(Type four, int i) {
    return i == 0   ? _mm512_permute_ps(four, 0x00)
           : i == 1 ? _mm512_permute_ps(four, 0x55)
           : i == 2 ? _mm512_permute_ps(four, 0xaa)
                    : _mm512_permute_ps(four, 0xff);
  }
  static Type load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Type v) { _mm512_storeu_ps(p, v); }
  static Type fma(Type a, const float* b, Type c) { return _mm512_fmadd_ps(a, _mm512_loadu_ps(b), c); }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
};

void conv(const ConvView& view, const ConvCall& call, const ConvTile& tile, float* scratch) {
  switch (tile.width) {
    case 64: return conv_tile<Vec, 4, 2>(view, call, tile, scratch);
    case 48: return conv_tile<Vec, 3, 2>(view, call, tile, scratch);
    case 32: return conv_tile<Vec, 2, 4>(view, call, tile, scratch);
    default: return conv_tile<Vec, 1, 4>(view, call, tile, scratch);
  }
}

void add_grad(const ConvView& view, const ConvImage& image, const float* grad, const ConvTile& tile,
              int64_t first_block, int64_t last_block, float* scratch, float* sums) {
  const auto run = [&](auto tile_of) { tile_of(view, image, grad, tile, first_block, last_block, scratch, sums); };
  switch (tile.width) {
    case 64: return run(conv_grad_tile<SampledVec, 4>);
    case 48: return run(conv_grad_tile<SampledVec, 3>);
    case 32: return run(conv_grad_tile<SampledVec, 2>);
    default: return run(conv_grad_tile<SampledVec, 1>);
  }
}

}  // namespace

const ConvKernels conv_kernels = {conv, add_grad, 16, 64};

}  // namespace gossamer::avx512
