// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "simd/panel_kernel.hpp"

namespace gossamer::avx2 {
namespace {

struct Vec {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type zero() { return _mm256_setzero_ps(); }
  static Type broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Type load4(const float* p) {
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  }
  // A bf16 is the upper half of a float.
  static Type broadcast(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(*p) << 16)));
  }
  static Type load4(const uint16_t* p) {
    const __m128i four = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_broadcastsi128_si256(_mm_slli_epi32(four, 16)));
  }
  __attribute__((always_inline)) static Type splat(Type four, int i) {
    return i == 0   ? _mm256_permute_ps(four, 0x00)
           : i == 1 ? _mm256_permute_ps(four, 0x55)
           : i == 2 ? _mm256_permute_ps(four, 0xaa)
                    : _mm256_permute_ps(four, 0xff);
  }
  static Type load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Type v) { _mm256_store_ps(p, v); }
  static Type fma(Type a, const float* b, Type c) { return _mm256_fmadd_ps(a, _mm256_load_ps(b), c); }
  static Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
};

template <int G, class Value>
void panel_width(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
                 int64_t last_tile, float* scratch) {
  constexpr int kSets = 2 / G;  // eight chains of FMAs, as many as the 16 registers allow
  switch (tile.width) {
    case 64: return panel_tile<Vec, 1, 8, 1, Value>(view, call, tile, first_tile, last_tile, scratch);
    case 32: return panel_tile<Vec, G, 4, kSets, Value>(view, call, tile, first_tile, last_tile, scratch);
    case 16: return panel_tile<Vec, G, 2, 2 * kSets, Value>(view, call, tile, first_tile, last_tile, scratch);
    default: return panel_tile<Vec, G, 1, 4, Value>(view, call, tile, first_tile, last_tile, scratch);
  }
}

void panel(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
           int64_t last_tile, float* scratch) {
  const auto whole = view.group_rows == 1 ? panel_width<1, float> : panel_width<2, float>;
  const auto half = view.group_rows == 1 ? panel_width<1, uint16_t> : panel_width<2, uint16_t>;
  (view.values ? whole : half)(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 16, 8, 0};
// Slabs of 24 KiB leave a quarter of L1 to the value stream and the accumulators. Measured at 50 /
// 90 / 95 %, speed-up over dense: 96 x 1 1.80 / 6.0 / 9.1, 192 x 2 1.73 / 6.6 / 10.7, 256 x 2 (32 KiB)
// 1.55 / 6.6 / 11.0; four rows side by side with 384 columns 1.53 / 6.3 / 10.2.
const PanelShape shapes[] = {{0.15, 96, 1}, {0.07, 192, 2}, {0, 256, 2}};

}  // namespace

const PanelKernels panel_kernels = {panel, widths, shapes, {ceiling_fma<Vec>, ceiling_panel<Vec, 8, 1>}};

}  // namespace gossamer::avx2
