// SPDX-License-Identifier: Apache-2.0
// The packed weight behind a Bf16View.
#pragma once
#include "gossamer/bf16_pairs.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/dword_layout.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

// vdpbf16ps is asked of the CPU: Isa::avx512 does without.
const Bf16Kernels& bf16_kernels(Isa isa);

struct Bf16Weight final : PackedWeight {
  DwordLayout layout;
  const Bf16Kernels& kernels;

  // Rounds the values and builds the layout. May throw std::bad_alloc.
  Bf16Weight(const KeptWeight& weight, DwordForm form, const Bf16Kernels& chosen);
  size_t bytes() const override { return layout.dword_bytes(); }
  void run(const LinearCall& call, int num_threads) const override;
};

}  // namespace gossamer
