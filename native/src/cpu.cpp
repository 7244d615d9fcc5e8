// SPDX-License-Identifier: Apache-2.0
#include "gossamer/cpu.hpp"

#include <stdexcept>

namespace gossamer {

namespace {

std::vector<Isa> detect() {
  std::vector<Isa> isas;
#ifdef GOSSAMER_X86
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    isas.push_back(Isa::avx512);
  if (has_avx2) isas.push_back(Isa::avx2);
#endif
  isas.push_back(Isa::reference);
  return isas;
}

std::vector<std::string> detect_extensions() {
  std::vector<std::string> names;
#ifdef GOSSAMER_X86
  if (available_isas().front() == Isa::avx512) {  // which the files of the extensions use, too
    if (__builtin_cpu_supports("avx512vnni")) names.emplace_back("avx512vnni");
    if (__builtin_cpu_supports("avx512bf16")) names.emplace_back("avx512bf16");
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
        __builtin_cpu_supports("avx512vnni"))
      names.emplace_back("avx512vbmi2");  // with what came with it
  }
#endif
  return names;
}

}  // namespace

const std::vector<std::string>& available_extensions() {
  static const std::vector<std::string> names = detect_extensions();
  return names;
}

bool has_extension(const std::string& name) {
  for (const std::string& known : available_extensions())
    if (known == name) return true;
  return false;
}

const char* isa_name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "reference";
}

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

Isa find_isa(const std::string& name) {
  std::string known;
  for (const Isa isa : available_isas()) {
    if (name == isa_name(isa)) return isa;
    known += std::string(known.empty() ? "" : ", ") + isa_name(isa);
  }
  throw std::invalid_argument("kernel set '" + name + "' cannot run on this CPU; available: " + known);
}

}  // namespace gossamer
