// SPDX-License-Identifier: Apache-2.0
#include "gossamer/cpu.hpp"

namespace gossamer {

namespace {

std::vector<const KernelSet*> detect() {
  std::vector<const KernelSet*> sets;
#ifdef GOSSAMER_X86
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    sets.push_back(&avx512::kernels);
  if (has_avx2) sets.push_back(&avx2::kernels);
#endif
  sets.push_back(&reference::kernels);
  return sets;
}

}  // namespace

const std::vector<const KernelSet*>& available_kernels() {
  static const std::vector<const KernelSet*> sets = detect();  // once: asked for in every call
  return sets;
}

}  // namespace gossamer
