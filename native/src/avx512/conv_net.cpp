// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "simd/conv_net_loops.hpp"

namespace gossamer::avx512 {
namespace {

// As finish_byte_rows of the loops, but numbers become bytes in fewer steps than a compiler finds.
template <bool ADDED, bool RELU>
void finish_byte_vectors(const float* tile, int64_t rows, const uint8_t* added, float scale, int zero,
                         const uint32_t* mask, const ByteCode& code, uint8_t* out) {
  constexpr int kVectors = kLanes / 16;
  const __m512 inverse = _mm512_set1_ps(code.inverse), high = _mm512_set1_ps(static_cast<float>(code.most - code.zero));
  const __m512 added_scale = _mm512_set1_ps(scale);
  const __m512i none = _mm512_setzero_si512(), to_zero = _mm512_set1_epi32(code.zero), added_zero = _mm512_set1_epi32(zero);
  __mmask16 pixels[kVectors];
  for (int i = 0; i < kVectors; ++i) pixels[i] = _mm512_test_epi32_mask(_mm512_loadu_si512(mask + 16 * i), _mm512_set1_epi32(-1));
  for (int64_t r = 0; r < rows; ++r, tile += kLanes, out += kLanes, added += ADDED ? kLanes : 0)
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      __m512 v = _mm512_loadu_ps(tile + 16 * i);
      if (ADDED) {
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(added + 16 * i)));
        v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(bytes, added_zero)), added_scale, v);
      }
      if (RELU) v = _mm512_max_ps(_mm512_setzero_ps(), v);
      // The order of min makes NaN the highest; what is too low for an int is the lowest of them.
      const __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(v, inverse), high));
      const __m512i codes = _mm512_max_epi32(_mm512_add_epi32(whole, to_zero), none);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * i),
                       _mm512_cvtepi32_epi8(_mm512_mask_mov_epi32(to_zero, pixels[i], codes)));
    }
}

void finish_byte_tile(const float* tile, int64_t rows, const AddedRows<uint8_t>& added, bool relu, const uint32_t* mask,
                      const ByteCode& code, uint8_t* out) {
  finish_with(relu ? finish_byte_vectors<false, true> : finish_byte_vectors<false, false>,
              relu ? finish_byte_vectors<true, true> : finish_byte_vectors<true, false>, tile, rows, added, mask, code, out);
}

}  // namespace

const ConvNetKernels conv_net_kernels = {kConvNetLoops.floats, kConvNetLoops.bytes, kConvNetLoops.finish, finish_byte_tile,
                                         kConvNetLoops.to_bytes};

}  // namespace gossamer::avx512
