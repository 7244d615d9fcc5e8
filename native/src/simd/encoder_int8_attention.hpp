// SPDX-License-Identifier: Apache-2.0
// Attention in int8 (VNNI): queries and keys with a scale per token, chances as bytes of the largest one, values
// with a scale per feature. Four features, then four keys, go into one dword; a query stays in its lane, as in
// fp32, so nothing is turned.
//
// Chances are divided by the sum of what they were rounded to: they add up to 1. Where a token of the sequence holds
// a NaN or an infinity its scale is NaN, and so is the result.
#pragma once
#include "gossamer/encoder.hpp"
#include "simd/encoder_kernel.hpp"
#include "simd/int8_vec_vnni.hpp"
#include "simd/panel_vec512.hpp"

namespace gossamer {
namespace {  // built for one instruction set

constexpr int kDwords = 16;  // of a vector
constexpr float kToPowers = 1.44269504f;  // of two, from those of e

// Sixteen tokens, [feature][kTileTokens] from a lane on, as dwords of four features, `stride` dwords apart.
struct QuantisedTokens {
  __m512 scales;
  __m512i sums;  // of the numbers of each token, before the offset
};

inline QuantisedTokens quantise_tokens16(const float* x, int64_t features, int offset, int32_t* to, int64_t stride) {
  __m512i top = _mm512_setzero_si512();
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t e = 0; e < features; ++e)
    top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_loadu_si512(x + e * kTileTokens), magnitude));
  alignas(64) uint32_t largest[kDwords];
  alignas(64) float scale[kDwords], inverse[kDwords];
  _mm512_store_si512(largest, top);
  Int8View view = {};
  view.activation_bits = 8;
  for (int t = 0; t < kDwords; ++t) {
    const TokenScale token = token_scale(largest[t], view);
    scale[t] = token.scale;
    inverse[t] = token.inverse;
  }
  const __m512 factor = _mm512_load_ps(inverse);
  __m512i sums = _mm512_setzero_si512();
  for (int64_t e = 0; e < features; e += 4) {
    __m512i v[4] = {};  // features behind the last one are zeros
    for (int64_t i = 0; i < 4 && e + i < features; ++i)
      v[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + (e + i) * kTileTokens), factor));
    const __m512i dwords = Int8Vec512Vnni::dwords_of(v, 0);
    sums = Int8Vec512Vnni::dot(sums, _mm512_set1_epi8(1), dwords);
    _mm512_storeu_si512(to + e / 4 * stride, _mm512_add_epi8(dwords, _mm512_set1_epi8(static_cast<char>(offset))));
  }
  return {_mm512_load_ps(scale), sums};
}

// 255 * 2^v for v <= 0, to 2 in 10000: finer than the bytes it is rounded to.
inline __m512 chance_of(__m512 v) {
  const __m512 c = _mm512_max_ps(v, _mm512_set1_ps(-100.0f)), magic = _mm512_set1_ps(12582912.0f);
  const __m512 shifted = _mm512_add_ps(c, magic), r = _mm512_sub_ps(c, _mm512_sub_ps(shifted, magic));
  __m512 p = _mm512_set1_ps(255 * 0.0558f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(255 * 0.2402f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(255 * 0.69315f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(255.0f));
  return _mm512_mul_ps(p, PanelVec512::two_to(shifted));
}

// One head of one sequence. Keys stand one after the other, whatever tiles they came from; vectors may write into
// the room behind the last one.
struct Int8Head {
  const AttentionCall& call;
  int64_t quads, room;
  float *key_scales, *query_scales, *value_scales, *scores;
  int32_t *key_starts, *keys, *queries, *chances;
  int8_t* values;
  float poison = 0.0f;  // NaN if one of the keys is

  Int8Head(const AttentionCall& of, void* scratch) : call(of) {
    quads = (call.head_width + 3) / 4;
    room = int8_attention_room(call.num_tokens);
    key_scales = static_cast<float*>(scratch);
    key_starts = reinterpret_cast<int32_t*>(key_scales + room);
    query_scales = reinterpret_cast<float*>(key_starts + room);
    scores = query_scales + kTileTokens;
    chances = reinterpret_cast<int32_t*>(scores + room * kTileTokens);
    queries = chances + room / 4 * kTileTokens;
    keys = queries + quads * kTileTokens;
    value_scales = reinterpret_cast<float*>(keys + quads * room);
    values = reinterpret_cast<int8_t*>(value_scales + call.head_width);
  }

  KeyRange all_keys() const { return {0, call.num_tokens}; }

  void take_keys() {
    each_run(call, all_keys(), [&](int64_t tile, int64_t first, int64_t last, int64_t index) {
      const float* from = call.from.tile(tile) + call.key * kTileTokens;
      for (int64_t lane = first; lane < last; lane += kDwords, index += kDwords) {
        const QuantisedTokens made = quantise_tokens16(from + lane, call.head_width, 0, keys + index, room);
        _mm512_storeu_ps(key_scales + index, made.scales);
        // Queries are stored with 128 more: what that adds is taken away at the start.
        _mm512_storeu_si512(key_starts + index, _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), made.sums), 7));
      }
    });
    for (int64_t j = 0; j < call.num_tokens; ++j) poison += key_scales[j] * 0.0f;
  }

  void take_values() {
    for (int64_t e = 0; e < call.head_width; ++e) {
      float top = 0.0f;
      const auto each_vector = [&](auto&& visit) {
        each_run(call, all_keys(), [&](int64_t tile, int64_t first, int64_t last, int64_t index) {
          const float* from = call.from.tile(tile) + (call.value + e) * kTileTokens;
          for (int64_t lane = first; lane < last; lane += kDwords, index += kDwords)
            visit(PanelVec512::loadu(from + lane), last - lane, index);
        });
      };
      __m512i most = _mm512_setzero_si512();
      each_vector([&](__m512 v, int64_t count, int64_t) {
        const auto lanes = static_cast<__mmask16>(count >= kDwords ? 0xffff : (1u << count) - 1);
        const __m512i bits = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
        most = _mm512_mask_max_epi32(most, lanes, most, bits);
      });
      const int32_t bits = _mm512_reduce_max_epi32(most);
      __builtin_memcpy(&top, &bits, sizeof top);
      const bool is_bad = bits >= 0x7f800000;
      value_scales[e] = is_bad ? __builtin_nanf("") : top / 127.0f;
      const __m512 factor = _mm512_set1_ps(is_bad || top < 0x1p-120f ? 0.0f : 127.0f / top);
      each_vector([&](__m512 v, int64_t, int64_t index) {
        const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, factor)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(values + e * room + index), bytes);
      });
    }
  }

  template <int R, int NQ>
  __attribute__((always_inline)) void score(int64_t first_query, int64_t key, __m512 top[NQ]) const {
    __m512i sum[R][NQ];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) sum[r][q] = _mm512_set1_epi32(key_starts[key + r]);
    for (int64_t e = 0; e < quads; ++e) {
      __m512i query[NQ];
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) query[q] = _mm512_load_si512(queries + e * kTileTokens + q * kDwords);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512i four = _mm512_set1_epi32(keys[e * room + key + r]);
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) sum[r][q] = Int8Vec512Vnni::dot(sum[r][q], query[q], four);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) {
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(query_scales + q * kDwords), _mm512_set1_ps(key_scales[key + r]));
        __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][q]), scale);
        if (call.bias)
          scaled = _mm512_fmadd_ps(_mm512_loadu_ps(call.bias + first_query - key - r + q * kDwords),
                                   _mm512_set1_ps(kToPowers), scaled);
        top[q] = _mm512_max_ps(top[q], scaled);
        _mm512_store_ps(scores + (key + r) * kTileTokens + q * kDwords, scaled);
      }
  }

  template <int R, int NQ>
  __attribute__((always_inline)) void mix(const KeyRange& seen, int64_t feature, float* to, int count,
                                          const __m512 inverse[NQ]) const {
    __m512i sum[R][NQ];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) sum[r][q] = _mm512_setzero_si512();
    for (int64_t j = seen.first / 4 * 4; j < seen.last; j += 4) {
      __m512i p[NQ];
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) p[q] = _mm512_load_si512(chances + j / 4 * kTileTokens + q * kDwords);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        int32_t four;
        __builtin_memcpy(&four, values + (feature + r) * room + j, sizeof four);
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) sum[r][q] = Int8Vec512Vnni::dot(sum[r][q], p[q], _mm512_set1_epi32(four));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) {
        const __m512 scale = _mm512_mul_ps(inverse[q], _mm512_set1_ps(value_scales[feature + r]));
        if (count > q * kDwords)
          PanelVec512::store_first(to + (feature + r) * kTileTokens + q * kDwords,
                                   _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][q]), scale), count - q * kDwords);
      }
  }

  // `count` queries from a lane of a tile on, in NQ vectors.
  template <int NQ>
  void answer(int64_t tile, int64_t lane, int64_t first_query, int count) const {
    const KeyRange seen = keys_seen(call, first_query, count);
    __m512 top[NQ], inverse[NQ];
    __m512i sum[NQ];
    const __m512 to_powers = _mm512_set1_ps(call.scale * kToPowers);
    for (int q = 0; q < NQ; ++q) {
      const float* from = call.from.tile(tile) + call.query * kTileTokens + lane + q * kDwords;
      const QuantisedTokens made =
          quantise_tokens16(from, call.head_width, 128, queries + q * kDwords, kTileTokens);
      _mm512_store_ps(query_scales + q * kDwords, _mm512_mul_ps(made.scales, to_powers));
      top[q] = _mm512_set1_ps(-__builtin_inff());
      sum[q] = _mm512_setzero_si512();
    }
    int64_t j = seen.first;
    for (; j + 4 <= seen.last; j += 4) score<4, NQ>(first_query, j, top);
    for (; j < seen.last; ++j) score<1, NQ>(first_query, j, top);
    for (j = seen.first / 4 * 4; j < seen.last; j += 4)
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m512 score = _mm512_load_ps(scores + (j + i) * kTileTokens + q * kDwords);
          v[i] = j + i >= seen.first && j + i < seen.last ? _mm512_cvtps_epi32(chance_of(_mm512_sub_ps(score, top[q])))
                                         : _mm512_setzero_si512();
        }
        const __m512i dwords = Int8Vec512Vnni::dwords_of(v, 0);
        sum[q] = Int8Vec512Vnni::dot(sum[q], dwords, _mm512_set1_epi8(1));
        _mm512_store_si512(chances + j / 4 * kTileTokens + q * kDwords, dwords);
      }
    for (int q = 0; q < NQ; ++q) {
      const __m512 broken = _mm512_mul_ps(_mm512_load_ps(query_scales + q * kDwords), _mm512_setzero_ps());
      inverse[q] = _mm512_add_ps(_mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_cvtepi32_ps(sum[q])),
                                 _mm512_add_ps(broken, _mm512_set1_ps(poison)));
    }
    float* to = call.into.tile(tile) + call.mixed * kTileTokens + lane;
    int64_t e = 0;
    for (; e + 4 <= call.head_width; e += 4) mix<4, NQ>(seen, e, to, count, inverse);
    for (; e < call.head_width; ++e) mix<1, NQ>(seen, e, to, count, inverse);
  }
};

inline void int8_attend(const AttentionCall& call, void* scratch) {
  if (call.num_tokens == 0) return;
  Int8Head head(call, scratch);
  head.take_keys();
  head.take_values();
  for (int64_t done = 0; done < call.num_tokens;) {
    const int64_t token = call.first_token + done, lane = token % kTileTokens, tile = token / kTileTokens;
    const int64_t count = smaller(kTileTokens - lane, call.num_tokens - done);
    const int vectors = static_cast<int>((count + kDwords - 1) / kDwords);
    if (vectors == 1)
      head.answer<1>(tile, lane, done, static_cast<int>(count));
    else if (vectors == 2)
      head.answer<2>(tile, lane, done, static_cast<int>(count));
    else
      head.answer<4>(tile, lane, done, static_cast<int>(count));
    done += count;
  }
}

}  // namespace
}  // namespace gossamer
