// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "table/table.hpp"

namespace gossamer::table {

inline const Kernels& kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::kernels, avx2::kernels, avx512::kernels);
#else
  (void)isa;
  return reference::kernels;
#endif
}

}  // namespace gossamer::table
