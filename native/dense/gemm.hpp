// SPDX-License-Identifier: Apache-2.0
// Products with an int8 weight that keeps everything: a tile of sums stays in registers. Numbers, and so bits, are
// those of gossamer/int8.hpp.
//
// Rows lie in groups of 16, [group][quad of four columns][row][4]. Two loops read this one layout:
//   panel   tokens are lanes and the quad of a row is spread: panels of the encoder, [row][64 tokens]
//   rows    rows are lanes and the quad of a token is spread: [token][row], and no token is computed that is not there
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

constexpr int64_t kGemmRows = 16;
// Quads of a panel that stay in an L1 of 32 KiB.
constexpr int64_t kGemmQuads = 96;
// Groups of a part of the panel loop: their sums stay in L2, the quads in L1.
constexpr int64_t kGemmGroups = 8;

struct GemmView {
  int64_t rows, columns, quads;
  int activation_bits;
  const int8_t* codes;        // zeros behind the last row and the last column
  const float* row_scales;    // [groups][16]
  const int32_t* row_starts;  // [groups][16], -2^(bits - 1) * sum of the row's codes

  int64_t groups() const { return (rows + kGemmRows - 1) / kGemmRows; }
  const int8_t* quad(int64_t group, int64_t index) const { return codes + (group * quads + index) * kGemmRows * 4; }
  int64_t rows_of(int64_t group) const {
    const int64_t left = rows - group * kGemmRows;
    return left < kGemmRows ? left : kGemmRows;
  }
};

// A tile of tokens as EncoderInt8Kernels::quantise leaves it, of `neighbours`.
struct GemmPanel {
  const uint8_t* bytes;
  const float* token_scales;
  float* out;         // [rows][64]
  const float* bias;  // [rows]
  Activation activation;
  int64_t tokens;
};

// Tokens as bytes, tile by tile: [quad][token of the tile][4]. What stands behind the last column does not count.
struct GemmTokens {
  const uint8_t* bytes;
  int64_t tokens, tiles;
  const float* scales;
  float* y;
  int64_t y_stride;
  const float* bias;  // may be null
  Activation activation;

  // Tiles are of equal size, up to one token.
  int64_t first_of(int64_t tile) const { return tokens * tile / tiles; }
};

// Allocate and throw nothing. `bytes` and `out` of panels are 64-byte aligned.
struct GemmKernels {
  void (*panel)(const GemmView&, int64_t first_group, int64_t last_group, const GemmPanel&);
  void (*rows)(const GemmView&, int64_t first_group, int64_t last_group, const GemmTokens&);
  int64_t tile_tokens;                 // of the row loop at most
  double (*ceiling)(int64_t repeats);  // the mix of `panel` on data in L1; returns the operations done
};

namespace reference { extern const GemmKernels gemm_kernels; }
namespace avx2 { extern const GemmKernels gemm_kernels; }
namespace avx512 { extern const GemmKernels gemm_kernels; }  // without VNNI
namespace avx512vnni { extern const GemmKernels gemm_kernels; }

// VNNI is asked of the CPU: Isa::avx512 does without.
const GemmKernels& gemm_kernels(Isa isa);

struct GemmLayout {
  int64_t rows = 0, columns = 0, quads = 0, kept = 0;
  int activation_bits = 8;
  BigVector<int8_t> codes;
  std::vector<float> row_scales;
  std::vector<int32_t> row_starts;

  GemmView view() const { return {rows, columns, quads, activation_bits, codes.data(), row_scales.data(), row_starts.data()}; }
  size_t bytes() const { return codes.size() + row_scales.size() * sizeof(float) + row_starts.size() * sizeof(int32_t); }
};

// Quantises finite values, zeros included. May throw std::bad_alloc.
GemmLayout pack_gemm(const KeptWeight& weight, int activation_bits);

// What Python holds.
std::unique_ptr<PackedWeight> pack_gemm_weight(const KeptWeight& weight, Isa isa);

}  // namespace gossamer
