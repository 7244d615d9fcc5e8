// SPDX-License-Identifier: Apache-2.0
// The kernels of conv_net.hpp as plain loops of fixed length, which the compiler turns into the vectors of the file
// that includes this. Static, so that every file keeps its own.
#pragma once
#include "gossamer/conv_net.hpp"

namespace gossamer {
namespace {

constexpr int kLanes = kTileTokens;

template <class T>
__attribute__((always_inline)) inline void copy_row(T* to, const T* from) {
  __builtin_memcpy(to, from, kLanes * sizeof(T));
}

// 64 bytes of lanes.
template <class T>
struct Part;
template <>
struct Part<float> {
  typedef float Lanes __attribute__((vector_size(64)));
  typedef int32_t Mask __attribute__((vector_size(64)));
};
template <>
struct Part<uint8_t> {
  typedef uint8_t Lanes __attribute__((vector_size(64)));
  typedef int8_t Mask __attribute__((vector_size(64)));
};

// One position of all channels. WHOLE parts come from the first row alone, the next one from both. Rows are put
// together in registers: storing both ends of a row over each other cost three times as much.
template <class T, int WHOLE>
void gather_position(const ShiftedLanes<T>& at, int64_t channels, T* to, int64_t to_step) {
  constexpr int kPart = 64 / sizeof(T), kParts = kLanes / kPart;
  using Lanes = typename Part<T>::Lanes;
  const int from_first = kLanes - at.from;
  typename Part<T>::Mask is_first;
  for (int i = 0; i < kPart; ++i) is_first[i] = WHOLE * kPart + i < from_first ? -1 : 0;
  for (int64_t c = 0; c < channels; ++c, to += to_step) {
    const T* first = at.first + c * at.first_step + at.from;
    const T* second = at.second + c * at.second_step - from_first;
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
      Lanes lanes, others;
      __builtin_memcpy(&lanes, (i <= WHOLE ? first : second) + i * kPart, sizeof lanes);
      if (i == WHOLE) {
        __builtin_memcpy(&others, second + i * kPart, sizeof others);
        lanes = is_first ? lanes : others;
      }
      __builtin_memcpy(to + i * kPart, &lanes, sizeof lanes);
    }
  }
}

template <class T>
void gather_lanes(const ShiftedLanes<T>* positions, int64_t num_positions, int64_t channels, T* panel) {
  constexpr int kPart = 64 / sizeof(T), kParts = kLanes / kPart;
  for (int64_t p = 0; p < num_positions; ++p, panel += kLanes) {
    const ShiftedLanes<T>& at = positions[p];
    const int whole = (kLanes - at.from) / kPart;
    const auto run = whole == kParts ? gather_position<T, kParts>
                     : whole == 0    ? gather_position<T, 0>
                     : whole == 1    ? gather_position<T, 1>
                     : whole == 2    ? gather_position<T, 2>
                                     : gather_position<T, 3>;
    run(at, channels, panel, num_positions * kLanes);
  }
}

template <class T>
void largest_lanes(const T* panel, int64_t num_positions, int64_t channels, const uint32_t* mask, T zero, T* out) {
  for (int64_t c = 0; c < channels; ++c, out += kLanes) {
    alignas(64) T top[kLanes];
    copy_row(top, panel);
    for (int64_t p = 0; p < num_positions; ++p, panel += kLanes)
      for (int i = 0; i < kLanes; ++i) top[i] = top[i] > panel[i] || top[i] != top[i] ? top[i] : panel[i];
    for (int i = 0; i < kLanes; ++i) out[i] = mask[i] ? top[i] : zero;
  }
}

// Two lanes as one number, whose lower half is the first.
template <class T>
struct Pair;
template <>
struct Pair<float> {
  using Bits = uint32_t;
  using Both = uint64_t;
};
template <>
struct Pair<uint8_t> {
  using Bits = uint8_t;
  using Both = uint16_t;
};

// Chunks of fixed length run over the end of a row; the row after it then takes its own place.
template <class T>
void take_phase(const T* from, int64_t from_step, int64_t rows, int64_t width, int64_t to_step, T zero, T* to) {
  constexpr int kChunk = 16;
  for (int64_t r = 0; r < rows; ++r, from += from_step, to += to_step) {
    for (int64_t first = 0; first < width; first += kChunk) {
      typename Pair<T>::Both both[kChunk];
      typename Pair<T>::Bits taken[kChunk];
      __builtin_memcpy(both, from + 2 * first, sizeof both);
      for (int i = 0; i < kChunk; ++i) taken[i] = static_cast<typename Pair<T>::Bits>(both[i]);
      __builtin_memcpy(to + first, taken, sizeof taken);
    }
    for (int64_t i = width; i < to_step; ++i) to[i] = zero;
  }
}

template <bool ADDED, bool RELU>
void finish_rows(float* tile, int64_t rows, const float* added, const uint32_t* mask) {
  for (int64_t r = 0; r < rows; ++r, tile += kLanes, added += ADDED ? kLanes : 0)
    for (int i = 0; i < kLanes; ++i) {
      float v = tile[i];
      if (ADDED) v += added[i];
      if (RELU) v = v < 0.0f ? 0.0f : v;  // NaN stays
      tile[i] = mask[i] ? v : 0.0f;
    }
}

void finish_tile(float* tile, int64_t rows, const AddedRows<float>& added, bool relu, const uint32_t* mask) {
  const auto plain = relu ? finish_rows<false, true> : finish_rows<false, false>;
  if (!added.rows) return plain(tile, rows, nullptr, mask);
  const int64_t last = added.first + added.count;
  plain(tile, added.first, nullptr, mask);
  (relu ? finish_rows<true, true> : finish_rows<true, false>)(tile + added.first * kLanes, added.count, added.rows, mask);
  plain(tile + last * kLanes, rows - last, nullptr, mask);
}

// Nearest, ties to even: numbers this large have no bits behind the point.
__attribute__((always_inline)) inline uint8_t byte_of(float v, float inverse, float low, float high, int zero) {
  constexpr float kMagic = 12582912.0f;
  float scaled = v * inverse;
  scaled = scaled < high ? scaled : high;  // NaN: the highest
  scaled = scaled > low ? scaled : low;
  const float shifted = scaled + kMagic;
  int32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  return static_cast<uint8_t>(bits - 0x4b400000 + zero);
}

template <bool ADDED, bool RELU>
void finish_byte_rows(const float* tile, int64_t rows, const uint8_t* added, float scale, int zero,
                      const uint32_t* mask, const ByteCode& code, uint8_t* out) {
  const float low = static_cast<float>(-code.zero), high = static_cast<float>(code.most - code.zero);
  const float inverse = code.inverse;
  const int to_zero = code.zero;
  for (int64_t r = 0; r < rows; ++r, tile += kLanes, out += kLanes, added += ADDED ? kLanes : 0)
    for (int i = 0; i < kLanes; ++i) {
      float v = tile[i];
      if (ADDED) v += static_cast<float>(added[i] - zero) * scale;
      if (RELU) v = v < 0.0f ? 0.0f : v;
      out[i] = mask[i] ? byte_of(v, inverse, low, high, to_zero) : static_cast<uint8_t>(to_zero);
    }
}

using FinishByteRows = void (*)(const float*, int64_t, const uint8_t*, float, int, const uint32_t*, const ByteCode&,
                                uint8_t*);

// Rows in front of what is added, with it, and behind it.
inline void finish_with(FinishByteRows plain, FinishByteRows adding, const float* tile, int64_t rows,
                        const AddedRows<uint8_t>& added, const uint32_t* mask, const ByteCode& code, uint8_t* out) {
  if (!added.rows) return plain(tile, rows, nullptr, 0.0f, 0, mask, code, out);
  const int64_t last = added.first + added.count;
  plain(tile, added.first, nullptr, 0.0f, 0, mask, code, out);
  adding(tile + added.first * kLanes, added.count, added.rows, added.scale, added.zero, mask, code,
         out + added.first * kLanes);
  plain(tile + last * kLanes, rows - last, nullptr, 0.0f, 0, mask, code, out + last * kLanes);
}

inline void finish_byte_loops(const float* tile, int64_t rows, const AddedRows<uint8_t>& added, bool relu,
                              const uint32_t* mask, const ByteCode& code, uint8_t* out) {
  finish_with(relu ? finish_byte_rows<false, true> : finish_byte_rows<false, false>,
              relu ? finish_byte_rows<true, true> : finish_byte_rows<true, false>, tile, rows, added, mask, code, out);
}

void floats_to_bytes(const float* x, int64_t num, const ByteCode& code, uint8_t* out) {
  const float low = static_cast<float>(-code.zero), high = static_cast<float>(code.most - code.zero);
  for (int64_t i = 0; i < num; ++i) out[i] = byte_of(x[i], code.inverse, low, high, code.zero);
}

constexpr ConvNetKernels kConvNetLoops = {
    {gather_lanes<float>, largest_lanes<float>, take_phase<float>},
    {gather_lanes<uint8_t>, largest_lanes<uint8_t>, take_phase<uint8_t>},
    finish_tile, finish_byte_loops, floats_to_bytes};

}  // namespace
}  // namespace gossamer
