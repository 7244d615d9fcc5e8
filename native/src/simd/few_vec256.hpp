// SPDX-License-Identifier: Apache-2.0
// Eight lanes for the kernels of few tokens.
#pragma once
#include "simd/few_types.hpp"

namespace gossamer {
namespace {

// By mask of 8 columns, for each column: where its value stands among the kept ones. Dropped columns
// have the top bit, which byte shuffles and blends read as zero.
template <class Fill>
struct ExpandTable {
  alignas(32) uint8_t entries[256][32];

  constexpr ExpandTable() : entries() {
    for (int mask = 0; mask < 256; ++mask) {
      int kept = 0;
      for (int j = 0; j < 8; ++j) {
        const bool keeps = mask >> j & 1;
        for (int byte = 0; byte < 4; ++byte) entries[mask][4 * j + byte] = Fill::byte(keeps, kept, byte);
        kept += keeps;
      }
    }
  }
};

struct FillBf16 {  // bytes of a bf16 into the upper half of its float
  static constexpr uint8_t byte(bool keeps, int rank, int byte) {
    return static_cast<uint8_t>(keeps && byte >= 2 ? 2 * rank + byte - 2 : 0x80);
  }
};
struct FillInt8 {  // an int8 into the top byte of an int32
  static constexpr uint8_t byte(bool keeps, int rank, int byte) {
    return static_cast<uint8_t>(keeps && byte == 3 ? rank : 0x80);
  }
};

struct RankTable {  // of floats
  uint8_t of[256][8];
  constexpr RankTable() : of() {
    for (int mask = 0; mask < 256; ++mask) {
      int kept = 0;
      for (int j = 0; j < 8; ++j) of[mask][j] = static_cast<uint8_t>(mask >> j & 1 ? kept++ : 0x80);
    }
  }
};

struct NibbleMasks {  // by mask of 8 columns: 15 in the nibble of every kept one
  uint32_t of[256];
  constexpr NibbleMasks() : of() {
    for (int mask = 0; mask < 256; ++mask)
      for (int j = 0; j < 8; ++j) of[mask] |= mask >> j & 1 ? 15u << (4 * j) : 0u;
  }
};

constexpr RankTable expand_fp32;
constexpr ExpandTable<FillBf16> expand_bf16;
constexpr ExpandTable<FillInt8> expand_int8;
constexpr NibbleMasks nibble_masks;

struct Vec256 {
  using Type = __m256;
  using Index = __m256i;
  static constexpr int kLanes = 8;
  static constexpr float kExpandedInt8 = 0x1p-24f;  // expand leaves an int8 as value << 24

  static Type zero() { return _mm256_setzero_ps(); }
  static Type set1(float v) { return _mm256_set1_ps(v); }
  static Type load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Type v) { _mm256_storeu_ps(p, v); }
  static Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  static Type mul(Type a, Type b) { return _mm256_mul_ps(a, b); }
  static float sum(Type v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  // Eight stored values in a row, without their scale.
  static Type values(Fp32, const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static Type values(Bf16, const uint8_t* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static Type values(Int8, const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Type values(Int4, const uint8_t* p) { return nibbles(load_u32(p)); }
  static Type nibbles(uint32_t word) {
    const __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    const __m256i top = _mm256_sllv_epi32(_mm256_set1_epi32(static_cast<int>(word)), up);
    return _mm256_cvtepi32_ps(_mm256_and_si256(top, _mm256_set1_epi32(static_cast<int>(0xf0000000u))));
  }

  // The kept values from number `at` on, spread to columns 8 s.. of the mask bits, zeros elsewhere;
  // `at` moves behind them.
  static Type expand(Fp32, uint32_t bits, int s, const uint8_t* values, uint64_t& at) {
    Type packed = _mm256_loadu_ps(reinterpret_cast<const float*>(values) + at);
    asm("" : "+x"(packed));  // a load of its own: as an operand of vpermps it took longer
    const uint32_t mask = bits >> (8 * s) & 255;
    at += static_cast<uint64_t>(__builtin_popcount(mask));
    // 8 bytes per mask: a table of 32 took 8 % longer. Two loads of 16 and one vpshufb for all took 15 %.
    const __m256i rank =
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(expand_fp32.of[mask])));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(packed, rank), zero(), _mm256_castsi256_ps(rank));
  }
  // One byte shuffle does it all: the 16 bytes of 8 bf16 stand in both halves.
  static Type expand(Bf16, uint32_t bits, int s, const uint8_t* values, uint64_t& at) {
    const __m256i packed =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 2 * at)));
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(packed, entry(expand_bf16, bits, s, at)));
  }
  static Type expand(Int8, uint32_t bits, int s, const uint8_t* values, uint64_t& at) {
    const __m256i packed = _mm256_castpd_si256(_mm256_broadcast_sd(reinterpret_cast<const double*>(values + at)));
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(packed, entry(expand_int8, bits, s, at)));
  }
  static Type expand(Int4, uint32_t bits, int s, const uint8_t* values, uint64_t& at) {
    const uint32_t mask = bits >> (8 * s) & 255;
    const uint64_t packed = load_u64(values + at / 2) >> (at % 2 * 4);
    at += static_cast<uint64_t>(__builtin_popcount(mask));
    return nibbles(_pdep_u32(static_cast<uint32_t>(packed), nibble_masks.of[mask]));
  }

  // Positions of eight rows in a window of W; only the bits that pick() reads are right.
  template <int W>
  static Index positions(const uint8_t* p) {
    if (W > 16) return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    constexpr int b = W <= 4 ? 2 : W <= 8 ? 3 : 4;
    const __m256i down = _mm256_setr_epi32(0, b, 2 * b, 3 * b, 4 * b, 5 * b, 6 * b, 7 * b);
    return _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(load_u32(p))), down);
  }

  // x[position] for every lane.
  template <int W>
  static Type pick(const float* x, Index at) {
    if (W <= 4) return _mm256_permutevar_ps(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(x)), at);
    const Type low = _mm256_permutevar8x32_ps(load(x), at);
    if (W <= 8) return low;
    const Type bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(at, 28));
    const Type low16 = _mm256_blendv_ps(low, _mm256_permutevar8x32_ps(load(x + 8), at), bit3);
    if (W <= 16) return low16;
    const Type high16 = _mm256_blendv_ps(_mm256_permutevar8x32_ps(load(x + 16), at),
                                         _mm256_permutevar8x32_ps(load(x + 24), at), bit3);
    return _mm256_blendv_ps(low16, high16, _mm256_castsi256_ps(_mm256_slli_epi32(at, 27)));
  }

 private:
  // Mask and offset are the same bits, five places apart.
  template <class Table>
  static __m256i entry(const Table& table, uint32_t bits, int s, uint64_t& at) {
    const uint32_t offset = (s ? bits >> (8 * s - 5) : bits << 5) & (255u << 5);
    at += static_cast<uint64_t>(__builtin_popcount(offset));
    return _mm256_load_si256(
        reinterpret_cast<const __m256i*>(reinterpret_cast<const uint8_t*>(&table) + offset));
  }
};

}  // namespace
}  // namespace gossamer
