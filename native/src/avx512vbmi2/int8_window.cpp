// SPDX-License-Identifier: Apache-2.0
// As in dense/gemm_kernel.hpp, loops over registers do nothing else.
#include "gossamer/int8_window.hpp"

#include "gossamer/encoder.hpp"
#include "simd/activation.hpp"
#include "simd/turn_dwords.hpp"

namespace gossamer::avx512vbmi2 {
namespace {

// What is read next, asked for along the way: the steps of a group behind those that stay in L2, a share of them with each
// tile of tokens. Without it a weight in memory would arrive while its first tile waits.
struct Ahead {
  const uint8_t* steps;
  int64_t bytes;  // for each step
};

// One group against one block of columns, for T tokens. Chains of few tokens would wait for their products: steps go to
// SETS of sums in turn.
template <int T, int SETS>
__attribute__((always_inline)) inline void add_steps(const WindowView& view, int64_t first, int64_t last, const uint8_t* tokens,
                                                     Ahead ahead, __m512i (&sum)[SETS][T]) {
  const uint8_t* step = view.steps + first * 2 * kWindowRows * 4;
  const auto add = [&](int64_t s, __m512i (&into)[T]) __attribute__((always_inline)) {
    const __m512i codes = _mm512_loadu_si512(step), places = _mm512_loadu_si512(step + 64);
    step += 128;
    _mm_prefetch(reinterpret_cast<const char*>(ahead.steps), _MM_HINT_T1);
    ahead.steps += ahead.bytes;
    const uint8_t* x = tokens + view.windows[s] * (T * kWindowBytes);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t)
      add_products(into[t], _mm512_permutexvar_epi8(places, _mm512_load_si512(x + t * kWindowBytes)), codes);
  };
  int64_t s = first;
#pragma GCC unroll 2
  for (; s + SETS <= last; s += SETS)
#pragma GCC unroll 4
    for (int i = 0; i < SETS; ++i) add(s + i, sum[i]);
  for (; s < last; ++s) add(s, sum[0]);
}

template <int T>
void group_tile(const WindowView& view, int64_t group, int64_t block, const uint8_t* tokens, const float* token_scales,
                const WindowTokens& call, Ahead ahead, int64_t first_group, int64_t first_token, int32_t* waiting) {
  constexpr int kSets = T == 1 ? 4 : T <= 4 ? 2 : 1;
  const int64_t blocks = view.blocks();
  const int64_t* const steps = view.first_steps + group * blocks + block;
  __m512i sum[kSets][T];
  if (block == 0) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) sum[0][t] = _mm512_loadu_si512(view.row_starts + group * kWindowRows);
  } else {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) sum[0][t] = _mm512_load_si512(waiting + t * kWindowRows);
  }
#pragma GCC unroll 4
  for (int i = 1; i < kSets; ++i)
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) sum[i][t] = _mm512_setzero_si512();
  add_steps<T, kSets>(view, steps[0], steps[1], tokens, ahead, sum);
#pragma GCC unroll 4
  for (int i = 1; i < kSets; ++i)
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) sum[0][t] = _mm512_add_epi32(sum[0][t], sum[i][t]);
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) _mm512_store_si512(waiting + t * kWindowRows, sum[0][t]);
  if (block + 1 < blocks) return;
  const int64_t row = (group - first_group) * kWindowRows, left = view.rows - group * kWindowRows;
  const auto inside = static_cast<__mmask16>(left >= kWindowRows ? 0xffff : (1u << left) - 1);
  const __m512 bias = call.bias ? _mm512_maskz_loadu_ps(inside, call.bias + row) : _mm512_setzero_ps();
  const __m512 scale = _mm512_loadu_ps(view.row_scales + group * kWindowRows);
  alignas(64) float y[T][kWindowRows];
  for (int t = 0; t < T; ++t)
    _mm512_store_ps(y[t], _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(waiting + t * kWindowRows)),
                                          _mm512_mul_ps(scale, _mm512_set1_ps(token_scales[t])), bias));
  activate(y[0], T * kWindowRows, call.activation);
  for (int t = 0; t < T; ++t)
    _mm512_mask_storeu_ps(call.y + (first_token + t) * call.y_stride + row, inside, _mm512_load_ps(y[t]));
}

using GroupTile = void (*)(const WindowView&, int64_t, int64_t, const uint8_t*, const float*, const WindowTokens&, Ahead, int64_t,
                           int64_t, int32_t*);
constexpr GroupTile group_tiles[kWindowTokens] = {
    group_tile<1>, group_tile<2>,  group_tile<3>,  group_tile<4>,  group_tile<5>,  group_tile<6>,  group_tile<7>,  group_tile<8>,
    group_tile<9>, group_tile<10>, group_tile<11>, group_tile<12>, group_tile<13>, group_tile<14>, group_tile<15>, group_tile<16>};

// A few groups at a time: their steps stay in L2 while all tiles pass.
void run(const WindowView& view, int64_t first_group, int64_t last_group, const WindowTokens& call, void* scratch) {
  for (int64_t begin = first_group; begin < last_group; begin += kWindowGroups) {
    const int64_t end = begin + kWindowGroups < last_group ? begin + kWindowGroups : last_group;
    for (int64_t tile = 0; tile < call.tiles; ++tile) {
      const int64_t first = call.first_of(tile), width = call.first_of(tile + 1) - first;
      const uint8_t* const tokens = call.bytes + first * view.num_windows() * kWindowBytes;
      for (int64_t block = 0; block < view.blocks(); ++block)
        for (int64_t group = begin; group < end; ++group) {
          const int64_t next = group + kWindowGroups < view.groups() ? group + kWindowGroups : group;
          const int64_t* const of_next = view.first_steps + next * view.blocks() + block;
          const Ahead ahead = {view.steps + (of_next[0] + (of_next[1] - of_next[0]) * tile / call.tiles) * 128, 128 / call.tiles};
          group_tiles[width - 1](view, group, block, tokens, call.scales + first, call, ahead, first_group, first,
                                 static_cast<int32_t*>(scratch) + (group - begin) * width * kWindowRows);
        }
    }
  }
}

// Sixteen quads and sixteen tokens at a time.
void of_panel(const uint8_t* bytes, int64_t num_windows, int64_t columns, int64_t tokens, uint8_t* windows) {
  const int64_t tiles = window_tiles(tokens), quads = (columns + 3) / 4;
  for (int64_t token = 0; token < tokens; token += 16)
    for (int64_t w = 0; w < num_windows; ++w) {
      const int64_t first = w * kWindowShift / 4;
      alignas(64) uint8_t last[16][64] = {};
      const uint8_t* from = bytes + (first * kTileTokens + token) * 4;
      int64_t stride = kTileTokens * 4;
      if (first + 16 > quads) {  // nothing is read behind the last quad
        for (int64_t k = first; k < quads; ++k) __builtin_memcpy(last[k - first], from + (k - first) * stride, 64);
        from = last[0], stride = 64;
      }
      __m512i turned[16];
      turn_dwords(from, stride, turned);
      if (tokens % 16 == 0) {  // tiles of 16
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_store_si512(windows + (token * num_windows + w * 16 + i) * kWindowBytes, turned[i]);
        continue;
      }
      for (int64_t i = 0, tile = 0; i < 16 && token + i < tokens; ++i) {
        while (tokens * (tile + 1) / tiles <= token + i) ++tile;
        const int64_t begin = tokens * tile / tiles, width = tokens * (tile + 1) / tiles - begin;
        _mm512_store_si512(windows + (begin * num_windows + w * width + token + i - begin) * kWindowBytes, turned[i]);
      }
    }
}

}  // namespace

const WindowKernel window_kernel = run;
const WindowsOfPanel windows_of_panel = of_panel;

}  // namespace gossamer::avx512vbmi2
