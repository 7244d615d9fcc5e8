// SPDX-License-Identifier: Apache-2.0
// Activations over a contiguous buffer, written so that the compiler vectorises them for the
// instruction set of the including file. libm calls per element would cost more than the product.
#pragma once
#include <cstdint>
#include <cstring>

#include "gossamer/linear.hpp"

namespace gossamer {

// exp(v), relative error below 2e-7: 2^n * polynomial of the remainder. Infinite above 88, NaN for
// NaN; below -87 it stays at exp(-87), which is nothing beside the 1 it is added to here.
static inline float exp_poly(float v) {
  const float c = v < -87.0f ? -87.0f : v;
  const float shifted = c * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to nearest
  const float n = shifted - 12582912.0f;
  const float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // n sits in the low bits of `shifted`: no conversion, which would be undefined for NaN.
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return v > 88.0f ? __builtin_inff() : p * scale;
}

// erf(v), absolute error below 3e-7: v times a polynomial in v^2, fitted over |v| < 3.6 and centred there, so
// that its terms do not cancel. No division and no exp.
static inline float erf_poly(float v) {
  const float c = v < -3.6f ? -3.6f : v > 3.6f ? 3.6f : v;  // keeps NaN
  const float t = c * c * 0.15432099f - 1.0f;
  float p = -9.6557924e-4f;
  p = p * t + 2.6314030e-3f;
  p = p * t - 2.8441313e-3f;
  p = p * t + 4.5722118e-3f;
  p = p * t - 1.1626105e-2f;
  p = p * t + 2.1246584e-2f;
  p = p * t - 3.2550626e-2f;
  p = p * t + 4.8292924e-2f;
  p = p * t - 6.8029471e-2f;
  p = p * t + 8.9811884e-2f;
  p = p * t - 1.1379398e-1f;
  p = p * t + 1.4381093e-1f;
  p = p * t - 1.9549051e-1f;
  p = p * t + 3.9271212e-1f;
  return v < -3.6f ? -1.0f : v > 3.6f ? 1.0f : c * p;  // exactly: GELU multiplies by what is left of 1
}

// tanh(v), relative error below 2e-7: a polynomial near 0, where 1 - 2 / (e^2v + 1) would cancel.
static inline float tanh_poly(float v) {
  const float a = v < 0.0f ? -v : v, s = a * a;
  float p = -5.5145250e-3f;
  p = p * s + 2.0468397e-2f;
  p = p * s - 5.3687471e-2f;
  p = p * s + 1.3330818e-1f;
  p = p * s - 3.3333259e-1f;
  const float near = a + a * s * p, far = 1.0f - 2.0f / (exp_poly(2.0f * a) + 1.0f);
  const float t = a < 0.65f ? near : far;  // NaN goes far, and stays
  return v < 0.0f ? -t : t;
}

static inline void activate(float* v, int64_t n, Activation activation) {
  switch (activation) {
    case Activation::none: return;
    case Activation::relu:
      for (int64_t i = 0; i < n; ++i) v[i] = v[i] < 0.0f ? 0.0f : v[i];  // keeps NaN
      return;
    case Activation::gelu:
      for (int64_t i = 0; i < n; ++i) v[i] = 0.5f * v[i] * (1.0f + erf_poly(v[i] * 0.70710678f));
      return;
    case Activation::silu:
      for (int64_t i = 0; i < n; ++i) v[i] = v[i] / (1.0f + exp_poly(-v[i]));
      return;
    case Activation::quick_gelu:
      for (int64_t i = 0; i < n; ++i) v[i] = v[i] / (1.0f + exp_poly(-1.702f * v[i]));
      return;
    case Activation::gelu_tanh:  // 1 + tanh(u) = 2 / (1 + exp(-2 u))
      for (int64_t i = 0; i < n; ++i)
        v[i] = v[i] / (1.0f + exp_poly(-1.5957691216f * (v[i] + 0.044715f * v[i] * v[i] * v[i])));
      return;
  }
}

}  // namespace gossamer
