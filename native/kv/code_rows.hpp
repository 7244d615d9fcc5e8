// SPDX-License-Identifier: Apache-2.0
// Floats as codes of 8 bits, -127 to 127, with a scale.
#pragma once
#include <cmath>
#include <cstdint>

#include "kv.hpp"

namespace gossamer {

// NaN if one of the numbers is not finite: whatever is multiplied by it shows it.
inline float scale_of(const float* x, int64_t n) {
  float most = 0.0f, poison = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float a = std::fabs(x[i]);
    most = a > most ? a : most;
    poison += x[i] * 0.0f;
  }
  return most / 127.0f + poison;
}

inline int8_t code_of(float v, float scale) {
  const float c = v / scale;  // 0 / 0 and NaN give 0 below
  if (!(c > -127.0f)) return c <= -127.0f ? -127 : 0;
  return static_cast<int8_t>(std::lrintf(c < 127.0f ? c : 127.0f));
}

// One lane of a page of keys whose columns are padded to `dim`.
inline void store_key_codes(const float* key, int64_t n, int64_t dim, int64_t lane, char* page) {
  const float scale = scale_of(key, n);
  reinterpret_cast<float*>(page + codes_bytes(dim))[lane] = scale;
  auto* const to = reinterpret_cast<uint8_t*>(page) + lane * 4;
  for (int64_t d = 0; d < n; ++d)
    to[d / 4 * kPage * 4 + d % 4] = static_cast<uint8_t>(128 + code_of(key[d], scale));
}

// Codes of a query, and what they give with keys that are all 128.
inline void query_codes(const float* query, int64_t dim, int8_t* codes, float* scale, int32_t* offset) {
  *scale = scale_of(query, dim);
  int32_t sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += codes[d] = code_of(query[d], *scale);
  *offset = 128 * sum;
}

}  // namespace gossamer
