// SPDX-License-Identifier: Apache-2.0
// The int8 convolution, once, over the vector types of int8_kernel.hpp.
#pragma once
#include "gossamer/int8_conv.hpp"
#include "simd/int8_kernel.hpp"
#include "simd/store_pixels.hpp"

namespace gossamer {

static inline uint32_t largest_of_run(const float* x, int64_t num) {
  const int64_t quarter = num / 4;
  const float* const parts[4] = {x, x + quarter, x + 2 * quarter, x + 3 * quarter};
  uint32_t largest[4], rest[4];
  largest4(parts, quarter, largest);
  const float* const behind[4] = {x + 4 * quarter, x + 4 * quarter, x + 4 * quarter, x + 4 * quarter};
  largest4(behind, num - 4 * quarter, rest);
  uint32_t top = rest[0];
  for (const uint32_t one : largest) top = one > top ? one : top;
  return top;
}

static inline void quantise_run(const float* x, int64_t num, float inverse, int bits, uint8_t* bytes) {
  Quantiser quantiser;
  quantiser.limit = _mm256_set1_ps(static_cast<float>(activation_limit(bits)));
  quantiser.offset = _mm256_set1_epi8(static_cast<char>(activation_offset(bits)));
  for (__m256& one : quantiser.inverse) one = _mm256_set1_ps(inverse);
  const __m256i natural = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const auto bytes32 = [&](const float* from) __attribute__((always_inline)) {
    __m256 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(from + i * 8);
    return _mm256_permutevar8x32_epi32(quantiser.bytes(v), natural);
  };
  int64_t i = 0;
  for (; i + 32 <= num; i += 32) _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + i), bytes32(x + i));
  if (i == num) return;
  alignas(32) float rest[32] = {};
  alignas(32) uint8_t rest_bytes[32];
  __builtin_memcpy(rest, x + i, static_cast<size_t>(num - i) * sizeof(float));
  _mm256_store_si256(reinterpret_cast<__m256i*>(rest_bytes), bytes32(rest));
  __builtin_memcpy(bytes + i, rest_bytes, static_cast<size_t>(num - i));
}

// All slabs of a tile. Runs are copied in order and by 32 bytes: what is too much is overwritten by the next.
static inline void copy_runs(const Int8ConvView& conv, const uint8_t* x, int width, uint8_t* slab) {
  for (int64_t c = 0; c < conv.channels; ++c, slab += conv.channel_bytes, x += conv.num_phases * conv.phase_bytes)
    for (int64_t r = 0; r < conv.num_runs; ++r) {
      const Int8ConvRun& run = conv.runs[r];
      const uint8_t* from = x + run.phase * conv.phase_bytes + run.shift;
      const int64_t num = run.bytes - (conv.width - width);
      for (int64_t i = 0; i < num; i += 32)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(slab + run.start + i),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    }
}

template <class V, int H>
void int8_conv_tile(const Int8ConvView& conv, const Int8ConvCall& call, const Int8ConvTile& at, void* scratch) {
  constexpr int kWidth = kDwordWidth<V, H>;
  OutputChunk chunks[kWidth];
  const int num_chunks = plan_pixels(conv, call, at, chunks);
  if (num_chunks == 0) return;
  const Int8View& product = conv.product;
  uint8_t* slabs = static_cast<uint8_t*>(scratch);
  float* tile = reinterpret_cast<float*>(slabs + int8_slabs_bytes(conv));
  float* scales = tile + product.tile_rows * kWidth;
  copy_runs(conv, call.x + at.first, kWidth, slabs);
  // In the order of the accumulators: vector q of a run of kBytes lanes holds dwords 4 q.. of each 16.
  for (int i = 0; i < kWidth; ++i) {
    const int inside = i % V::kBytes, vector = inside / (V::kBytes / 4), dword = inside % (V::kBytes / 4);
    const int lane = i - inside + dword / 4 * 16 + vector * 4 + dword % 4;
    const int64_t image = (at.first + lane) / conv.image_lanes;
    scales[i] = call.image_scales[image < conv.images ? image : conv.images - 1];
  }
  const int64_t row_pixels = conv.out_h * conv.out_w;
  for (int64_t part = at.first_tile; part < at.last_tile; ++part) {
    const int64_t num_rows = rows_of_tile(product, part);
    int8_row_tile<V, H, DwordForm::image>(product, part, slabs, conv.block_channels * conv.channel_bytes, tile,
                                         call.bias, scales);
    if (call.added)
      add_rows(tile, kWidth, num_rows, chunks, num_chunks, call.added + part * product.tile_rows * row_pixels,
               row_pixels);
    activate(tile, num_rows * kWidth, call.activation);
    store_rows(tile, kWidth, num_rows, chunks, num_chunks, call.y + part * product.tile_rows * row_pixels, row_pixels);
  }
}

}  // namespace gossamer
