// SPDX-License-Identifier: Apache-2.0
// int8 products with any mask where an instruction picks 64 bytes of 64 (vpermb): rows are lanes. A step holds four
// kept weights of each of 16 rows, all from one window of 64 columns, and for each of them its place in the window.
// So a step is one load, one pick and one product per token, for any number of tokens, and what zeros save is what
// the steps are fewer than quads of a dense weight: 0.54 at half zeros, 0.25 at 80 %, 0.15 at 90 %.
//
// Rows go through their weights side by side: the next window begins at the next weight of the row that is furthest
// behind, at a multiple of 32. Tokens hold every window, so each column twice, and no load crosses a line.
//
// Numbers, and so bits, are those of gossamer/int8.hpp.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gossamer/big_alloc.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/int8.hpp"
#include "gossamer/linear.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

constexpr int64_t kWindowBytes = 64;
constexpr int64_t kWindowShift = 32;   // columns from one window to the next
constexpr int64_t kWindowBlock = 768;  // columns whose windows stay in L1 with the tokens of a tile
constexpr int64_t kWindowRows = 16;
constexpr int64_t kWindowTokens = 16;  // of a tile at most: more sums would fit, more windows would not
constexpr int64_t kWindowGroups = 16;  // whose steps stay in L2

struct WindowView {
  int64_t rows, columns;
  int activation_bits;
  const int64_t* first_steps;  // [groups][blocks], and the end behind the last
  const uint16_t* windows;     // [steps]
  const uint8_t* steps;        // [steps][codes, places][16 rows][4]
  const float* row_scales;     // [groups][16]
  const int32_t* row_starts;   // [groups][16], as in Int8View

  int64_t groups() const { return (rows + kWindowRows - 1) / kWindowRows; }
  int64_t blocks() const { return columns ? (columns + kWindowBlock - 1) / kWindowBlock : 1; }
  int64_t num_windows() const { return (columns + kWindowShift - 1) / kWindowShift; }
};

// Tokens, tile by tile: [window][token of the tile][64 bytes], 64-byte aligned. What stands behind the last column
// does not count.
struct WindowTokens {
  const uint8_t* bytes;
  int64_t tokens, tiles;
  const float* scales;
  float* y;  // [token][rows of the first group on]
  int64_t y_stride;
  const float* bias;  // of the first group on; may be null
  Activation activation;

  // Tiles are of equal size, up to one token.
  int64_t first_of(int64_t tile) const { return tokens * tile / tiles; }
};

static inline int64_t window_tiles(int64_t tokens) { return (tokens + kWindowTokens - 1) / kWindowTokens; }

// Bytes of sums that wait between blocks of columns, 64-byte aligned.
constexpr size_t kWindowScratchBytes = kWindowGroups * kWindowRows * kWindowTokens * 4;

// Allocates and throws nothing.
using WindowKernel = void (*)(const WindowView&, int64_t first_group, int64_t last_group, const WindowTokens&, void* scratch);
// The windows of up to 64 tokens from bytes as EncoderInt8Kernels::quantise leaves them, of `neighbours`.
using WindowsOfPanel = void (*)(const uint8_t* bytes, int64_t num_windows, int64_t columns, int64_t tokens, uint8_t* windows);

namespace reference {
extern const WindowKernel window_kernel;
extern const WindowsOfPanel windows_of_panel, windows_of_quads;  // of its own bytes, and of those of other sets
}
namespace avx512vbmi2 {
extern const WindowKernel window_kernel;
extern const WindowsOfPanel windows_of_panel;
}

// Whether this CPU has the instruction: elsewhere the reference runs.
bool picks_bytes(Isa isa);
WindowKernel window_kernel(Isa isa);
WindowsOfPanel windows_of_panel(Isa isa);

struct WindowLayout {
  int64_t rows = 0, columns = 0, kept = 0;
  int activation_bits = 8;
  std::vector<int64_t> first_steps;
  std::vector<uint16_t> windows;
  BigVector<uint8_t> steps;
  std::vector<float> row_scales;
  std::vector<int32_t> row_starts;

  WindowView view() const {
    return {rows, columns, activation_bits, first_steps.data(), windows.data(), steps.data(), row_scales.data(), row_starts.data()};
  }
  size_t bytes() const {
    return first_steps.size() * sizeof(int64_t) + windows.size() * sizeof(uint16_t) + steps.size() +
           row_scales.size() * sizeof(float) + row_starts.size() * sizeof(int32_t);
  }
};

// Quantises finite values. May throw std::bad_alloc.
WindowLayout pack_windows(const KeptWeight& weight, int activation_bits);

// What Python holds.
std::unique_ptr<PackedWeight> pack_window_weight(const KeptWeight& weight, Isa isa);

}  // namespace gossamer
