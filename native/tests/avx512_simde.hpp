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

#ifndef _mm512_cvtepi32_ps
static inline __m512 cvtepi32_ps_512(__m512i v) {
  int in[16];
  float out[16];
  std::memcpy(in, &v, sizeof in);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(in[i]);
  __m512 converted;
  std::memcpy(&converted, out, sizeof out);
  return converted;
}
#define _mm512_cvtepi32_ps(v) cvtepi32_ps_512(v)
#endif

// Its alias of this one asks for the arguments of the masked form.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

// `asm volatile("" : "+v"(vector))` wants a 512-bit register, which there is none of.
#define volatile(...) ("" ::: "memory")
