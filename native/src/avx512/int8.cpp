// SPDX-License-Identifier: Apache-2.0
// For CPUs with AVX-512 but without VNNI.
#include "simd/int8_kernel.hpp"
#include "simd/int8_vec256.hpp"
#include "simd/int8_vec512.hpp"

namespace gossamer::avx512 {
namespace {

struct Bits7 : Int8Vec512 {
  static Int widened(Int sum, Int words) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
  }
  static Int dot(Int sum, Int x, Int w) { return widened(sum, _mm512_maddubs_epi16(x, w)); }
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) {
    return widened(sum, _mm512_add_epi16(_mm512_maddubs_epi16(x0, w0), _mm512_maddubs_epi16(x1, w1)));
  }
};

struct Bits8 : Int8Vec512 {
  static Int dot(Int sum, Int x, Int w) {
    const Int even = _mm512_set1_epi16(0xff);
    sum = Bits7::dot(sum, x, _mm512_and_si512(w, even));
    return Bits7::dot(sum, x, _mm512_andnot_si512(even, w));
  }
  static Int dot2(Int sum, Int x0, Int w0, Int x1, Int w1) { return dot(dot(sum, x0, w0), x1, w1); }
};

void run(const Int8View& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
         int64_t last_tile, void* scratch) {
  const bool narrow = tile.width == 32;
  const auto width = view.activation_bits == 7 ? (narrow ? int8_forms<Int8Vec256Bits7, 1> : int8_forms<Bits7, 1>)
                                               : (narrow ? int8_forms<Int8Vec256Bits8, 1> : int8_forms<Bits8, 1>);
  width(view, call, tile, first_tile, last_tile, scratch);
}

const int widths[] = {64, 32, 0};

}  // namespace

const Int8Kernels int8_kernels = {run, widths, {384, 384}, 7, PairRule::bounded,
                                  ceiling_dwords<Bits7, 1, DwordForm::panel>,
                                  ceiling_dwords<Bits7, 1, DwordForm::neighbours>};

}  // namespace gossamer::avx512
