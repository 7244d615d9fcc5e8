// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "simd/panel_kernel.hpp"

namespace gossamer::avx512 {
namespace {

struct Vec {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static Type zero() { return _mm512_setzero_ps(); }
  static Type broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Type load4(const float* p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
  // A bf16 is the upper half of a float.
  static Type broadcast(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(static_cast<uint32_t>(*p) << 16)));
  }
  static Type load4(const uint16_t* p) {
    const __m128i four = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm512_castsi512_ps(_mm512_broadcast_i32x4(_mm_slli_epi32(four, 16)));
  }
  __attribute__((always_inline)) static Type splat(Type four, int i) {
    return i == 0   ? _mm512_permute_ps(four, 0x00)
           : i == 1 ? _mm512_permute_ps(four, 0x55)
           : i == 2 ? _mm512_permute_ps(four, 0xaa)
                    : _mm512_permute_ps(four, 0xff);
  }
  static Type load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, Type v) { _mm512_store_ps(p, v); }
  static Type fma(Type a, const float* b, Type c) { return _mm512_fmadd_ps(a, _mm512_load_ps(b), c); }
  static Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
};

template <int G, class Value>
void panel_width(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
                 int64_t last_tile, float* scratch) {
  switch (tile.width) {
    case 64: return panel_tile<Vec, 1, 4, 2, Value>(view, call, tile, first_tile, last_tile, scratch);
    case 32: return panel_tile<Vec, G, 2, 4 / G, Value>(view, call, tile, first_tile, last_tile, scratch);
    default: return panel_tile<Vec, G, 1, 4, Value>(view, call, tile, first_tile, last_tile, scratch);
  }
}

void panel(const PanelView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
           int64_t last_tile, float* scratch) {
  const auto whole = view.group_rows == 1 ? panel_width<1, float> : panel_width<2, float>;
  const auto half = view.group_rows == 1 ? panel_width<1, uint16_t> : panel_width<2, uint16_t>;
  (view.values ? whole : half)(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 16, 0};
// As measured with AVX2: Zen 3 and Zen 4 have the same L1 and the same bytes per cycle.
const PanelShape shapes[] = {{0.15, 96, 1}, {0.07, 192, 2}, {0, 256, 2}};

}  // namespace

const PanelKernels panel_kernels = {panel, widths, shapes, {ceiling_fma<Vec>, ceiling_panel<Vec, 4, 2>}};

}  // namespace gossamer::avx512
