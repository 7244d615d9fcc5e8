// SPDX-License-Identifier: Apache-2.0
// Sixteen columns at a time: the only set with instructions that spread and collect the lanes of a mask. Memory
// is read and written by masks of the first lanes: the forms that expand from memory are slow on some CPUs.
#include "gossamer/bitmask.hpp"

#include <immintrin.h>

namespace gossamer::avx512 {
namespace {

struct Words {
  using Type = float;  // moved as bits, never computed with
  static __m512 load(const Type* p, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, p); }
  static void store(Type* p, __mmask16 lanes, __m512 v) { _mm512_mask_storeu_ps(p, lanes, v); }
};

struct Halves {
  using Type = uint16_t;
  static __m512 load(const Type* p, __mmask16 lanes) {
    return _mm512_castsi512_ps(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p)));
  }
  static void store(Type* p, __mmask16 lanes, __m512 v) {
    _mm256_mask_storeu_epi16(p, lanes, _mm512_cvtepi32_epi16(_mm512_castps_si512(v)));
  }
};

// Calls visit(column, mask of the kept ones, mask of all) for sixteen columns at a time.
template <class Visit>
void each_sixteen(const uint8_t* bits, int64_t columns, Visit visit) {
  int64_t k = 0;
  for (; k + 16 <= columns; k += 16) {
    uint16_t mask;
    __builtin_memcpy(&mask, bits + k / 8, 2);
    visit(k, mask, static_cast<__mmask16>(0xffff));
  }
  if (k == columns) return;
  const unsigned mask = bits[k / 8] | (columns - k > 8 ? bits[k / 8 + 1] << 8 : 0);
  visit(k, static_cast<uint16_t>(mask), static_cast<__mmask16>((1u << (columns - k)) - 1));
}

__mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }

template <class Items>
void expand(const void* values, const uint8_t* bits, int64_t columns, void* row) {
  const auto* value = static_cast<const typename Items::Type*>(values);
  auto* to = static_cast<typename Items::Type*>(row);
  each_sixteen(bits, columns, [&](int64_t k, uint16_t mask, __mmask16 all) {
    const int kept = __builtin_popcount(mask);
    Items::store(to + k, all, _mm512_maskz_expand_ps(mask, Items::load(value, first_lanes(kept))));
    value += kept;
  });
}

template <class Items>
void gather(const void* row, const uint8_t* bits, int64_t columns, void* values) {
  auto* value = static_cast<typename Items::Type*>(values);
  const auto* from = static_cast<const typename Items::Type*>(row);
  each_sixteen(bits, columns, [&](int64_t k, uint16_t mask, __mmask16 all) {
    const int kept = __builtin_popcount(mask);
    Items::store(value, first_lanes(kept), _mm512_maskz_compress_ps(mask, Items::load(from + k, all)));
    value += kept;
  });
}

}  // namespace

const BitmaskKernels bitmask_kernels_2 = {expand<Halves>, gather<Halves>};
const BitmaskKernels bitmask_kernels_4 = {expand<Words>, gather<Words>};

}  // namespace gossamer::avx512
