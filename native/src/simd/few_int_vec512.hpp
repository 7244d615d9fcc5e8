// SPDX-License-Identifier: Apache-2.0
// Pieces of the integer kernels for few tokens on vectors of 64 bytes: activations to bytes, weights to bytes, lanes to
// sums. Kept bytes are spread to their columns by one instruction where the file is compiled for VBMI2, else by shuffles.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "gossamer/few_int.hpp"

namespace gossamer {
namespace {

// Bytes that are asked for ahead: masks and values are read once, a row after the other.
constexpr int64_t kAhead = 2048;
__attribute__((always_inline)) inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kAhead, _MM_HINT_T0);
}

// 16 floats, zeros behind the last of `count`.
inline __m512 load_some(const float* x, int64_t count) {
  if (count >= 16) return _mm512_loadu_ps(x);
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(count > 0 ? (1u << count) - 1 : 0), x);
}

// As in the reference: the same products and the same roundings. Bytes are q ^ flip.
inline float quantise_step(const float* x, int64_t count, char flip, uint8_t* bytes) {
  __m512 v[4];
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = load_some(x + 16 * i, count - 16 * i);
    // As integers magnitudes are in order, with infinity and NaN on top.
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(v[i]), magnitude));
  }
  const uint32_t bits = _mm512_reduce_max_epu32(largest);
  float top;
  std::memcpy(&top, &bits, sizeof top);
  const bool is_finite = bits < 0x7f800000u;
  const float inverse = is_finite && top >= 1e-30f ? 127.0f / top : 0.0f;
  const __m512 factor = _mm512_set1_ps(inverse);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i q = inverse != 0.0f ? _mm512_cvtps_epi32(_mm512_mul_ps(v[i], factor)) : _mm512_setzero_si512();
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes + 16 * i), _mm_xor_si128(_mm512_cvtepi32_epi8(q), _mm_set1_epi8(flip)));
  }
  return is_finite ? (inverse != 0.0f ? top / 127.0f : 0.0f) : __builtin_nanf("");
}

// 64 nibbles from 32 bytes: of v and v << 4 in 16 bits, the lower halves of both bytes.
inline __m512i nibbles(const uint8_t* p) {
  const __m512i v = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  constexpr int kOrAnd = (0xf0 | 0xcc) & 0xaa;
  return _mm512_ternarylogic_epi32(v, _mm512_slli_epi16(v, 4), _mm512_set1_epi8(15), kOrAnd);
}

// What a weight of zero is stored as.
template <bool kInt4>
inline __m512i stored_zero() {
  return _mm512_set1_epi8(static_cast<char>(kInt4 ? 8 : 128));
}

#ifdef __AVX512VBMI2__
// Bytes from `kept` on at the columns of `mask`, `fill` elsewhere.
inline __m512i spread(const uint8_t* kept, uint64_t mask, __m512i fill) {
  return _mm512_mask_expand_epi8(fill, mask, _mm512_loadu_si512(kept));
}
inline __m512i spread(__m512i kept, uint64_t mask, __m512i fill) { return _mm512_mask_expand_epi8(fill, mask, kept); }
#else
inline __m128i two_words(const uint8_t* low, const uint8_t* high) {
  int64_t words[2];
  std::memcpy(words, low, 8), std::memcpy(words + 1, high, 8);
  return _mm_set_epi64x(words[1], words[0]);
}

// The same by shuffles: each eight columns get the eight kept bytes from where theirs begin, and each column takes the
// one that is as far behind as it has kept columns before it. Gathers took three times as long where they are mitigated.
__attribute__((always_inline)) inline __m512i spread(const uint8_t* kept, uint64_t mask, __m512i fill) {
  __m128i bytes[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int at = 16 * i;
    bytes[i] = two_words(kept + (at ? __builtin_popcountll(mask << (64 - at)) : 0), kept + __builtin_popcountll(mask << (56 - at)));
  }
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes[0]), bytes[1], 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes[2]), bytes[3], 1);
  const __m512i words = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  // The mask of its eight columns for every column, less its own bit and those behind it, and how many are left.
  const __m512i own = _mm512_set_epi64(0x0707070707070707, 0x0606060606060606, 0x0505050505050505, 0x0404040404040404,
                                       0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m512i before = _mm512_and_si512(_mm512_shuffle_epi8(_mm512_set1_epi64(static_cast<int64_t>(mask)), own),
                                          _mm512_set1_epi64(0x7f3f1f0f07030100));
  const __m512i counts = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  const __m512i half = _mm512_set1_epi8(15);
  const __m512i few = _mm512_shuffle_epi8(counts, _mm512_and_si512(before, half));
  const __m512i more = _mm512_shuffle_epi8(counts, _mm512_and_si512(_mm512_srli_epi16(before, 4), half));
  // Of 16 bytes the second eight are counted from 8.
  const __m512i second = _mm512_set_epi64(0x0808080808080808, 0, 0x0808080808080808, 0, 0x0808080808080808, 0, 0x0808080808080808, 0);
  const __m512i rank = _mm512_add_epi8(_mm512_add_epi8(few, more), second);
  return _mm512_mask_blend_epi8(mask, fill, _mm512_shuffle_epi8(words, rank));
}
inline __m512i spread(__m512i kept, uint64_t mask, __m512i fill) {
  alignas(64) uint8_t bytes[kIntStep + 8] = {};  // eight are read behind the last
  _mm512_store_si512(bytes, kept);
  return spread(bytes, mask, fill);
}
#endif

// The next 64 columns as they are stored; `values` moves on. kDense: no mask.
template <bool kInt4, bool kDense>
__attribute__((always_inline)) inline __m512i next_weights(const uint8_t*& values, const uint64_t* mask) {
  const uint8_t* from = values;
  if (kDense) {
    values += kInt4 ? kIntStep / 2 : kIntStep;
    return kInt4 ? nibbles(from) : _mm512_loadu_si512(from);
  }
  const int64_t count = __builtin_popcountll(*mask);
  values += kInt4 ? (count + 1) / 2 : count;
  return kInt4 ? spread(nibbles(from), *mask, stored_zero<kInt4>()) : spread(from, *mask, stored_zero<kInt4>());
}

// The next twice 64 columns, of which int4 has one in the low and one in the high nibbles.
template <bool kInt4, bool kDense>
__attribute__((always_inline)) inline void next_two(const uint8_t*& values, const uint64_t* mask, __m512i* w) {
  if (!kInt4) {
    w[0] = next_weights<kInt4, kDense>(values, mask);
    w[1] = next_weights<kInt4, kDense>(values, kDense ? nullptr : mask + 1);
    return;
  }
  const __m512i low = _mm512_set1_epi8(15);
  __m512i first = _mm512_loadu_si512(values), second = first;
  if (kDense) {
    values += kIntStep;
  } else {
    const __m512i zeros = _mm512_set1_epi8(static_cast<char>(0x88));
    first = spread(values, mask[0], zeros);
    second = spread(values, mask[1], zeros);
    const int64_t counts[2] = {__builtin_popcountll(mask[0]), __builtin_popcountll(mask[1])};
    values += counts[0] > counts[1] ? counts[0] : counts[1];
  }
  w[0] = _mm512_and_si512(first, low);
  w[1] = _mm512_and_si512(_mm512_srli_epi16(second, 4), low);
}

// Which scale each part of a row has: with few kept weights several parts share one.
struct PartGroups {
  int64_t parts, span;
  uint16_t* groups;  // [parts, rounded up to 16]; not needed where span is 1

  PartGroups(const FewIntView& view, int64_t count, void* memory)
      : parts(count), span(view.span), groups(static_cast<uint16_t*>(memory)) {
    if (span == 1) return;
    for (int64_t p = 0; p < (parts + 15) / 16 * 16; ++p) groups[p] = static_cast<uint16_t>((p < parts ? p : parts - 1) / span);
  }
};

// The int4 scales or offsets of 16 parts of a row, bf16 or with offsets fp16.
template <bool kFp16>
inline __m512 part_numbers(const FewIntView& view, const uint16_t* numbers, int64_t row, int64_t part, const PartGroups& of) {
  const uint16_t* of_row = numbers + row * view.scales_of_row;
  const int64_t left = of.parts - part;
  __m256i halves;
  if (of.span == 1) {
    halves = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1), of_row + part);
  } else {
    // 16 parts have no more than 16 groups, from that of the first on; numbers have spare ones behind them.
    const uint16_t first = of.groups[part];
    const __m256i at = _mm256_sub_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.groups + part)), _mm256_set1_epi16(static_cast<int16_t>(first)));
    halves = _mm256_permutexvar_epi16(at, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(of_row + first)));
  }
  return kFp16 ? _mm512_cvtph_ps(halves) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// The sums of 16 vectors in the lanes of one.
inline __m512 sums_of(const __m512* v) {
  __m512 pairs[8], quads[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)  // lanes of 32 bits: v0 v1 v0 v1
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // v0 v1 v2 v3
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  // Quarters of 128 bits: first of a and b, then of all four.
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

}  // namespace
}  // namespace gossamer
