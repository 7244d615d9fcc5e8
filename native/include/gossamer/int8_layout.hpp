// SPDX-License-Identifier: Apache-2.0
// The packed weight that owns what an Int8View points to, and the driver that runs it.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/dword_layout.hpp"
#include "gossamer/int8.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

struct Int8Options {
  DwordForm form;
  int activation_bits;     // 7 or 8; 0: what the instruction set does best
  float activation_scale;  // 0: one per token
};

struct Int8Layout : DwordLayout {
  int activation_bits = 8;
  float activation_scale = 0.0f;
  std::vector<float> row_scales;
  std::vector<int32_t> row_starts;

  Int8View view() const {
    return {dword_view(), activation_bits, activation_scale, row_scales.data(), row_starts.data()};
  }
  size_t bytes() const {
    return dword_bytes() + row_scales.size() * sizeof(float) + row_starts.size() * sizeof(int32_t);
  }
};

// VNNI is asked of the CPU: Isa::avx512 does without.
const Int8Kernels& int8_kernels(Isa isa);

// Quantises finite values and builds the layout. May throw std::bad_alloc.
Int8Layout pack_int8(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& kernels,
                     const DwordCut& cut);
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
