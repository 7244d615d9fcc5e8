// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this build has kernels for and this CPU can run.
#pragma once
#include <string>
#include <vector>

namespace gossamer {

enum class Isa { reference, avx2, avx512 };

const char* isa_name(Isa isa);

// Best first; the reference is always there.
const std::vector<Isa>& available_isas();

// Instructions beyond the sets that single families use where the CPU has them: "avx512vnni",
// "avx512bf16", "avx512vbmi2".
const std::vector<std::string>& available_extensions();
bool has_extension(const std::string& name);

// Throws std::invalid_argument for a set that is unknown or that this CPU cannot run.
Isa find_isa(const std::string& name);

// The entry of one family for an instruction set. Builds for other processors hold the reference only.
template <class Kernels>
const Kernels& pick(Isa isa, const Kernels& reference, const Kernels& avx2, const Kernels& avx512) {
  return isa == Isa::avx512 ? avx512 : isa == Isa::avx2 ? avx2 : reference;
}

}  // namespace gossamer
