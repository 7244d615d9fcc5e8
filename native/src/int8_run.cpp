// SPDX-License-Identifier: Apache-2.0
#include "gossamer/int8_layout.hpp"
#include "dword_run.hpp"

namespace gossamer {

const Int8Kernels& int8_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  const bool has_vnni = has_extension("avx512vnni");
  return pick(isa, reference::int8_kernels, avx2::int8_kernels,
              has_vnni ? avx512vnni::int8_kernels : avx512::int8_kernels);
#else
  (void)isa;
  return reference::int8_kernels;
#endif
}

Int8Weight::Int8Weight(const KeptWeight& weight, const Int8Options& options, const Int8Kernels& chosen)
    : layout(pack_int8(weight, options, chosen)), kernels(chosen) {
  rows = layout.rows;
  columns = layout.columns;
  kept = layout.kept;
}

void Int8Weight::run(const LinearCall& call, int num_threads) const {
  run_dwords(layout.view(), call, kernels.widths, 1, num_threads, kernels.run, int8_scratch_bytes);
}

}  // namespace gossamer
