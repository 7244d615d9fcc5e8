// SPDX-License-Identifier: Apache-2.0
// Moments in bytes: a block of at most 256 entries to floats and back.
//
// Bits of floats are taken apart instead of calling log2: libraries differ in its last bit, and a loop
// without calls becomes vectors.
#pragma once
#include "gossamer/adamw.hpp"
#include "simd/float_bits.hpp"

#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")

namespace gossamer {

constexpr uint32_t kInfinityBits = 0x7f800000u, kSizeBits = 0x7fffffffu;

static inline void decode_moment(const AdamwMoment& moment, int64_t start, int64_t count, float* __restrict to) {
  const uint8_t* __restrict codes = static_cast<const uint8_t*>(moment.entries) + start;
  const float* __restrict table = moment.table;
  const float scale = float_of(static_cast<uint32_t>(moment.exponents[start / kCodeBlock] + 127) << 23);
  for (int64_t i = 0; i < count; ++i) to[i] = table[codes[i]] * scale;
}

// The bits of |value|, 0 for NaN.
static inline uint32_t size_bits(float value) {
  const uint32_t bits = bits_of(value) & kSizeBits;
  return bits > kInfinityBits ? 0u : bits;
}

// Eight times the binary logarithm of the float with these bits, which is positive, as a whole number of octaves
// and a rest in [-4, 4].
struct Eighths {
  int32_t octaves;
  float rest;
};

static inline Eighths eighths_of(uint32_t bits) {
  constexpr int32_t kRootHalf = 0x3f3504f3;  // mantissas from sqrt(1/2) to sqrt(2)
  const bool tiny = bits < 0x00800000u;      // not normalised
  const int32_t normal = static_cast<int32_t>(tiny ? bits_of(float_of(bits) * 4294967296.0f) : bits);
  const int32_t octaves = (normal - kRootHalf) >> 23;
  const float mantissa = float_of(static_cast<uint32_t>(normal) - (static_cast<uint32_t>(octaves) << 23));
  // log2 m = 2 / ln 2 * artanh((m - 1) / (m + 1)); what is left out is below 4e-8.
  const float s = (mantissa - 1.0f) / (mantissa + 1.0f), z = s * s;
  const float series = 7.6943736f + z * (4.6166241f + z * 3.2975887f);
  return {tiny ? octaves - 32 : octaves, s * (23.083121f + z * series)};
}

// Codes of a block of values that are finite, or lost: NaN becomes 0 and infinity the largest number.
template <bool kSigned>
static inline void encode_moment(const AdamwMoment& moment, int64_t start, int64_t count,
                                 const float* __restrict values, const float* __restrict offsets) {
  constexpr int32_t kTop = kSigned ? 127 : 255;
  int32_t largest = 0;  // signed: compilers know no other maximum of a loop
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = static_cast<int32_t>(size_bits(values[i]));
    largest = largest > bits ? largest : bits;
  }
  constexpr int32_t kLargest = 253 << 23;  // 2^126: its exponent is the last that fits into 8 bits
  const int32_t cut = largest < kLargest ? largest : kLargest;
  const int32_t exponent = cut == 0 ? 0 : (cut >> 23) - 126;
  moment.exponents[start / kCodeBlock] = static_cast<int8_t>(exponent);
  uint8_t* __restrict codes = static_cast<uint8_t*>(moment.entries) + start;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = size_bits(values[i]);
    const Eighths found = eighths_of(bits);
    const float level = static_cast<float>((found.octaves - exponent) * 8 + kTop) + found.rest + offsets[i];
    const float capped = level < static_cast<float>(kTop) ? level : static_cast<float>(kTop);
    const float lowest = kSigned ? 0.0f : 1.0f;
    const int32_t code = static_cast<int32_t>(capped > lowest ? capped : lowest);
    if (kSigned)
      codes[i] = static_cast<uint8_t>(bits_of(values[i]) >> 31 ? -code : code);
    else
      codes[i] = static_cast<uint8_t>(bits == 0 ? 0 : code);
  }
}

}  // namespace gossamer

#pragma GCC pop_options
