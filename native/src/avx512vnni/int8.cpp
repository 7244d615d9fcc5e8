// SPDX-License-Identifier: Apache-2.0
// vpdpbusd: four products and their sum in one instruction, exact for 7 and 8 bits alike.
#include "simd/int8_kernel.hpp"
#include "simd/int8_vec256.hpp"
#include "simd/int8_vec512.hpp"

namespace gossamer::avx512vnni {
namespace {

struct Wide : Int8Vec512 {
  static Int dot(Int sum, Int x, Int w) { return _mm512_dpbusd_epi32(sum, x, w); }
  // The pair first: a chain of vpdpbusd alone waits five cycles for each.
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) {
    return _mm512_add_epi32(sum, dot(dot(_mm512_setzero_si512(), x0, w0), x1, w1));
  }
};

struct Narrow : Int8Vec256 {
  static Int dot(Int sum, Int x, Int w) { return _mm256_dpbusd_epi32(sum, x, w); }
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) {
    return _mm256_add_epi32(sum, dot(dot(_mm256_setzero_si256(), x0, w0), x1, w1));
  }
};

void run(const Int8View& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
         int64_t last_tile, void* scratch) {
  const auto width = tile.width == 32 ? int8_forms<Narrow, 1> : int8_forms<Wide, 1>;
  width(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 0};

}  // namespace

const Int8Kernels int8_kernels = {run, widths, {384, 384}, 8, PairRule::any, ceiling_dwords<Wide, 1, DwordForm::panel>,
                                  ceiling_dwords<Wide, 1, DwordForm::neighbours>};

}  // namespace gossamer::avx512vnni
