// SPDX-License-Identifier: Apache-2.0
// The packed weight that owns what an Int8View points to, and the driver that runs it.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/int8.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

struct Int8Options {
  Int8Form form;
  int activation_bits;     // 7 or 8; 0: what the instruction set does best
  float activation_scale;  // 0: one per token
};

struct Int8Layout {
  int64_t rows = 0, columns = 0, kept = 0;
  int64_t block_columns = 0, tile_rows = 0;
  int64_t num_blocks = 0, num_tiles = 0;
  Int8Form form = Int8Form::panel;
  int activation_bits = 8;
  float activation_scale = 0.0f;
  std::vector<Int8Block> blocks;
  std::vector<uint16_t> row_ids, row_quads, row_pairs, offsets;
  std::vector<int8_t> weights;
  std::vector<float> row_scales;
  std::vector<int32_t> row_starts;

  Int8View view() const {
    return {rows,           columns,          block_columns,     tile_rows,         num_blocks,
            num_tiles,      form,             activation_bits,   activation_scale,  blocks.data(),
            row_ids.data(), row_quads.data(), row_pairs.data(),  weights.data(),    offsets.data(),
            row_scales.data(), row_starts.data()};
  }
  size_t bytes() const {
    return blocks.size() * sizeof(Int8Block) + weights.size() +
           (row_ids.size() + row_quads.size() + row_pairs.size() + offsets.size()) * sizeof(uint16_t) +
           row_scales.size() * sizeof(float) + row_starts.size() * sizeof(int32_t);
  }
};

// VNNI is asked of the CPU: Isa::avx512 does without.
const Int8Kernels& int8_kernels(Isa isa);

// How columns are cut into blocks, and the offset of each column of a block.
struct Int8Cut {
  int64_t block_columns;
  std::vector<uint16_t> offsets;
};

// Quantises finite values and builds the layout. May throw std::bad_alloc.
Int8Layout pack_int8(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& kernels,
                     const Int8Cut& cut);
// With the cut for tiles of tokens.
Int8Layout pack_int8(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& kernels);

// What Python holds.
struct Int8Weight final : PackedWeight {
  Int8Layout layout;
  const Int8Kernels& kernels;

  Int8Weight(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& chosen);
  size_t bytes() const override { return layout.bytes(); }
  void run(const LinearCall& call, int num_threads) const override;
};

}  // namespace gossamer
