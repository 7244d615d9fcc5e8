// SPDX-License-Identifier: Apache-2.0
// Floats as codes of 8 bits, -127 to 127, or of 4, -7 to 7, with a scale.
#pragma once
#include <cmath>
#include <cstdint>

#include "kv.hpp"

namespace gossamer {

// NaN if one of the numbers is not finite: whatever is multiplied by it shows it.
inline float scale_of(const float* x, int64_t n, float codes = 127.0f) {
  float most = 0.0f, poison = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float a = std::fabs(x[i]);
    most = a > most ? a : most;
    poison += x[i] * 0.0f;
  }
  return most / codes + poison;
}

inline int8_t code_of(float v, float scale) {
  const float c = v / scale;  // 0 / 0 and NaN give 0 below
  if (!(c > -127.0f)) return c <= -127.0f ? -127 : 0;
  return static_cast<int8_t>(std::lrintf(c < 127.0f ? c : 127.0f));
}

// The largest numbers are rounded as all others are: 7.4 steps become 7.
inline float scale_of_four(const float* x, int64_t n) { return scale_of(x, n, 7.4f); }

inline uint8_t four_bits_of(float v, float scale) {
  const float c = v / scale;
  return static_cast<uint8_t>(8 + (c != c ? 0 : std::lrintf(c)));  // 0 / 0 and NaN give 0
}

// Half a byte that held the code of 0.
inline void store_four(uint8_t* byte, uint8_t code, bool is_high) {
  *byte = static_cast<uint8_t>(is_high ? (*byte & 0x0f) | code << 4 : (*byte & 0xf0) | code);
}

// One lane of a page of keys, or one row of a page of values, whose `dim` numbers have been spread.
inline void store_key_fours(const float* key, int64_t dim, int64_t lane, char* page) {
  const float scale = scale_of_four(key, dim);
  reinterpret_cast<float*>(page + codes_bytes(KvType::int4, dim))[lane] = scale;
  auto* const to = reinterpret_cast<uint8_t*>(page) + lane * 4;
  for (int64_t d = 0; d < dim; ++d)
    store_four(to + d / 8 * kPage * 4 + d % 4, four_bits_of(key[d], scale), d / 4 % 2);
}

inline void store_value_fours(const float* value, int64_t dim, int64_t lane, char* page) {
  const float scale = scale_of_four(value, dim);
  reinterpret_cast<float*>(page + codes_bytes(KvType::int4, dim))[lane] = scale;
  auto* const to = reinterpret_cast<uint8_t*>(page) + lane / 8 * dim * 4 + lane % 4;
  for (int64_t d = 0; d < dim; ++d) store_four(to + d * 4, four_bits_of(value[d], scale), lane / 4 % 2);
}

// One lane of a page of keys whose columns are padded to `dim`.
inline void store_key_codes(const float* key, int64_t n, int64_t dim, int64_t lane, char* page) {
  const float scale = scale_of(key, n);
  reinterpret_cast<float*>(page + codes_bytes(KvType::int8, dim))[lane] = scale;
  auto* const to = reinterpret_cast<uint8_t*>(page) + lane * 4;
  for (int64_t d = 0; d < n; ++d)
    to[d / 4 * kPage * 4 + d % 4] = static_cast<uint8_t>(128 + code_of(key[d], scale));
}

// Codes of a query, and what they give with keys whose codes are all that of 0.
inline void query_codes(const float* query, int64_t dim, KvType type, int8_t* codes, float* scale, int32_t* offset) {
  *scale = scale_of(query, dim);
  int32_t sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += codes[d] = code_of(query[d], *scale);
  *offset = (type == KvType::int4 ? 8 : 128) * sum;
}

}  // namespace gossamer
