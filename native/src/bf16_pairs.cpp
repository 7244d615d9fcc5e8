// SPDX-License-Identifier: Apache-2.0
#include "gossamer/bf16.hpp"
#include "gossamer/bf16_pairs_layout.hpp"
#include "dword_fill.hpp"
#include "dword_run.hpp"

namespace gossamer {

const Bf16Kernels& bf16_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::bf16_kernels, avx2::bf16_kernels,
              has_extension("avx512bf16") ? avx512bf16::bf16_kernels : avx512::bf16_kernels);
#else
  (void)isa;
  return reference::bf16_kernels;
#endif
}

Bf16Weight::Bf16Weight(const KeptWeight& weight, DwordForm form, const Bf16Kernels& chosen) : kernels(chosen) {
  const std::vector<int64_t> row_start = row_starts(weight);
  const DwordCut cut = token_cut(weight, kernels.block_columns);
  cut_dwords(layout, weight, row_start[weight.rows], form, cut);
  const auto rounded = [](int64_t, float value) -> uint32_t { return to_bf16(value); };
  const auto as_they_are = [](const std::vector<Dword>&) { return 0; };
  fill_dwords<2>(layout, weight, row_start, cut, rounded, as_they_are);
  rows = layout.rows;
  columns = layout.columns;
  kept = layout.kept;
}

void Bf16Weight::run(const LinearCall& call, int num_threads) const {
  run_dwords(layout.dword_view(), call, kernels.widths, 2, num_threads, kernels.run, bf16_scratch_bytes);
}

}  // namespace gossamer
