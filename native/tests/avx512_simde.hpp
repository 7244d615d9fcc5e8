// SPDX-License-Identifier: Apache-2.0
// Put in front of an AVX-512 source with -include: its intrinsics become SIMDe's portable ones, so
// the same C++ runs on a CPU without AVX-512. For tests only.
#pragma once
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

// SIMDe 0.7.4 lacks these; written after the pseudo-code of Intel's guide.
#ifndef _mm512_permute_ps
static inline __m512 permute_ps_512(__m512 v, int control) {
  float in[16], out[16];
  std::memcpy(in, &v, sizeof in);
  for (int i = 0; i < 16; ++i) out[i] = in[i / 4 * 4 + (control >> (i % 4 * 2) & 3)];
  std::memcpy(&v, out, sizeof out);
  return v;
}
#define _mm512_permute_ps(v, control) permute_ps_512(v, control)
#endif

// Its alias of this one asks for the arguments of the masked form.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

// As above, for the dropout of attention.
#ifndef _mm512_cmpgt_epu32_mask
#define _mm512_cmpgt_epu32_mask(a, b) static_cast<__mmask16>(~simde_mm512_cmple_epu32_mask(a, b))
#endif

// As above, for the kernels of few tokens: f(lane) for every lane.
template <class Vector, class Lane, class F>
static inline Vector by_lane_512(F&& f) {
  Lane out[16];
  for (int i = 0; i < 16; ++i) out[i] = f(i);
  Vector v;
  std::memcpy(&v, out, sizeof v);
  return v;
}
template <class Lane, class Vector>
static inline Lane lane_of(const Vector& v, int i) {
  Lane lanes[sizeof(Vector) / sizeof(Lane)];
  std::memcpy(lanes, &v, sizeof v);
  return lanes[i];
}
// As above, for the codes of keys.
#ifndef _mm512_srai_epi32
static inline __m512i srai_epi32_512(__m512i v, unsigned bits) {
  return by_lane_512<__m512i, int32_t>([v, bits](int i) { return lane_of<int32_t>(v, i) >> bits; });
}
#define _mm512_srai_epi32(v, bits) srai_epi32_512(v, bits)
#endif
static inline __m512i sll_epi32_512(__m512i v, __m128i bits) {
  return by_lane_512<__m512i, uint32_t>([v, bits](int i) { return lane_of<uint32_t>(v, i) << _mm_cvtsi128_si32(bits); });
}
#undef _mm512_sll_epi32
#define _mm512_sll_epi32(v, bits) sll_epi32_512(v, bits)
#ifndef _mm512_cvtusepi32_epi8
static inline __m128i cvtusepi32_epi8_512(__m512i v) {
  uint8_t out[16];
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(lane_of<uint32_t>(v, i) < 255 ? lane_of<uint32_t>(v, i) : 255);
  __m128i codes;
  std::memcpy(&codes, out, sizeof codes);
  return codes;
}
#define _mm512_cvtusepi32_epi8(v) cvtusepi32_epi8_512(v)
#endif
#ifndef _mm512_reduce_max_ps
static inline float reduce_max_ps_512(__m512 v) {
  float most = lane_of<float>(v, 0);
  for (int i = 1; i < 16; ++i) most = lane_of<float>(v, i) > most ? lane_of<float>(v, i) : most;
  return most;
}
#define _mm512_reduce_max_ps(v) reduce_max_ps_512(v)
#endif
#ifndef _mm512_reduce_add_ps
static inline float reduce_add_ps_512(__m512 v) {
  float sum = 0.0f;
  for (int i = 0; i < 16; ++i) sum += lane_of<float>(v, i);
  return sum;
}
#define _mm512_reduce_add_ps(v) reduce_add_ps_512(v)
#endif
// As above, for the transposes of attention: two fourths of a, then two of b.
#ifndef _mm512_shuffle_f32x4
static inline __m512 shuffle_f32x4_512(__m512 a, __m512 b, int control) {
  return by_lane_512<__m512, float>([a, b, control](int i) {
    const int from = (control >> (i / 4 * 2) & 3) * 4 + i % 4;
    return i < 8 ? lane_of<float>(a, from) : lane_of<float>(b, from);
  });
}
#define _mm512_shuffle_f32x4(a, b, control) shuffle_f32x4_512(a, b, control)
#endif
// SIMDe's own takes a mode of rounding for a part of the scale. No source scales, so this does not either.
static inline __m512 roundscale_ps_512(__m512 v, int control) {
  return by_lane_512<__m512, float>([v, mode = control & 7](int i) {
    const float x = lane_of<float>(v, i);
    switch (mode) {
      case _MM_FROUND_TO_NEG_INF: return __builtin_floorf(x);
      case _MM_FROUND_TO_POS_INF: return __builtin_ceilf(x);
      case _MM_FROUND_TO_ZERO: return __builtin_truncf(x);
      default: return __builtin_rintf(x);
    }
  });
}
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(v, control) roundscale_ps_512(v, control)
#ifndef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(v) \
  by_lane_512<__m512, float>([in = (v)](int i) { return static_cast<float>(lane_of<int32_t>(in, i)); })
#endif
#ifndef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(v) by_lane_512<__m512i, int32_t>([in = (v)](int i) { return lane_of<int8_t>(in, i); })
#endif
#ifndef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(v) by_lane_512<__m512i, int32_t>([in = (v)](int i) { return lane_of<uint8_t>(in, i); })
#endif
#ifndef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(v) \
  by_lane_512<__m512i, int32_t>([in = (v)](int i) { return lane_of<uint16_t>(in, i); })
#endif
#ifndef _mm512_permutevar_ps
#define _mm512_permutevar_ps(v, at)                              \
  by_lane_512<__m512, float>([in = (v), from = (at)](int i) {    \
    return lane_of<float>(in, i / 4 * 4 + (lane_of<int32_t>(from, i) & 3)); \
  })
#endif
#ifndef _mm512_maskz_expand_ps
#define _mm512_maskz_expand_ps(mask, v)                                                            \
  by_lane_512<__m512, float>([in = (v), bits = static_cast<unsigned>(mask)](int i) {               \
    return bits >> i & 1 ? lane_of<float>(in, __builtin_popcount(bits & ((1u << i) - 1))) : 0.0f; \
  })
#endif

// For panels of encoders, neurons and masks.
#ifndef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(v) \
  by_lane_512<__m512i, int32_t>([in = (v)](int i) { return static_cast<int32_t>(__builtin_lrintf(lane_of<float>(in, i))); })
#endif
#ifndef _mm512_reduce_add_ps
static inline float reduce_add_ps_512(__m512 v) {
  float sum = 0.0f;
  for (int i = 0; i < 16; ++i) sum += lane_of<float>(v, i);
  return sum;
}
#define _mm512_reduce_add_ps(v) reduce_add_ps_512(v)
#endif
#ifndef _mm512_reduce_add_epi32
static inline int32_t reduce_add_epi32_512(__m512i v) {
  uint32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += lane_of<uint32_t>(v, i);
  return static_cast<int32_t>(sum);
}
#define _mm512_reduce_add_epi32(v) reduce_add_epi32_512(v)
#endif
#ifndef _mm512_cvtepi32_epi8
static inline __m128i cvtepi32_epi8_512(__m512i v) {
  int8_t out[16];
  for (int i = 0; i < 16; ++i) out[i] = static_cast<int8_t>(lane_of<int32_t>(v, i));
  __m128i bytes;
  std::memcpy(&bytes, out, sizeof bytes);
  return bytes;
}
#define _mm512_cvtepi32_epi8(v) cvtepi32_epi8_512(v)
#endif
template <class Lane>
static inline Lane reduce_max_512(__m512i v) {
  Lane most = lane_of<Lane>(v, 0);
  for (int i = 1; i < 16; ++i) most = lane_of<Lane>(v, i) > most ? lane_of<Lane>(v, i) : most;
  return most;
}
#ifndef _mm512_reduce_max_epi32
#define _mm512_reduce_max_epi32(v) reduce_max_512<int32_t>(v)
#endif
#ifndef _mm512_reduce_max_epu32
#define _mm512_reduce_max_epu32(v) reduce_max_512<uint32_t>(v)
#endif
#ifndef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(mask, p)                                                                     \
  by_lane_512<__m512, float>([from = static_cast<const float*>(p), bits = static_cast<unsigned>(mask)](int i) { \
    return bits >> i & 1 ? from[i] : 0.0f;                                                                 \
  })
#endif
#ifndef _mm512_mask_loadu_ps
#define _mm512_mask_loadu_ps(other, mask, p)                                                                \
  by_lane_512<__m512, float>(                                                                               \
      [in = (other), from = static_cast<const float*>(p), bits = static_cast<unsigned>(mask)](int i) {      \
        return bits >> i & 1 ? from[i] : lane_of<float>(in, i);                                             \
      })
#endif
#ifndef _mm512_extractf32x8_ps
static inline __m256 extractf32x8_ps_512(__m512 v, int half) {
  float lanes[16];
  std::memcpy(lanes, &v, sizeof lanes);
  __m256 out;
  std::memcpy(&out, lanes + 8 * half, sizeof out);
  return out;
}
#define _mm512_extractf32x8_ps(v, half) extractf32x8_ps_512(v, half)
#endif
#ifndef _mm512_mask_storeu_ps
static inline void mask_storeu_ps_512(void* p, unsigned mask, __m512 v) {
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) static_cast<float*>(p)[i] = lane_of<float>(v, i);
}
#define _mm512_mask_storeu_ps(p, mask, v) mask_storeu_ps_512(p, mask, v)
#endif
#ifndef _mm512_cvtepi32_epi16
static inline __m256i cvtepi32_epi16_512(__m512i v) {
  uint16_t halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(lane_of<uint32_t>(v, i));
  __m256i out;
  std::memcpy(&out, halves, sizeof out);
  return out;
}
#define _mm512_cvtepi32_epi16(v) cvtepi32_epi16_512(v)
#endif

#ifndef _mm256_maskz_loadu_epi16
static inline __m256i maskz_loadu_epi16_256(unsigned mask, const void* p) {
  uint16_t halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = mask >> i & 1 ? static_cast<const uint16_t*>(p)[i] : uint16_t{0};
  __m256i out;
  std::memcpy(&out, halves, sizeof out);
  return out;
}
#define _mm256_maskz_loadu_epi16(mask, p) maskz_loadu_epi16_256(mask, p)
#endif
#ifndef _mm256_mask_storeu_epi16
static inline void mask_storeu_epi16_256(void* p, unsigned mask, __m256i v) {
  uint16_t halves[16];
  std::memcpy(halves, &v, sizeof halves);
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) static_cast<uint16_t*>(p)[i] = halves[i];
}
#define _mm256_mask_storeu_epi16(p, mask, v) mask_storeu_epi16_256(p, mask, v)
#endif

#ifndef _mm512_cvtneps_pbh
static inline __m256i cvtneps_pbh_512(__m512 v) {
  uint32_t bits[16];
  uint16_t halves[16];
  std::memcpy(bits, &v, sizeof bits);
  for (int i = 0; i < 16; ++i) {
    const uint32_t b = bits[i], magnitude = b & 0x7fffffffu;
    const bool is_denormal = magnitude < 0x00800000u, is_nan = magnitude > 0x7f800000u;
    halves[i] = static_cast<uint16_t>((is_denormal ? b & 0x80000000u
                                       : is_nan    ? b | 0x400000u
                                                   : b + 0x7fff + (b >> 16 & 1)) >> 16);
  }
  __m256i out;
  std::memcpy(&out, halves, sizeof out);
  return out;
}
#define _mm512_cvtneps_pbh(v) cvtneps_pbh_512(v)
#endif

// `asm volatile("" : "+v"(vector))` wants a 512-bit register, which there is none of.
#define volatile(...) ("" ::: "memory")
