// SPDX-License-Identifier: Apache-2.0
// Instruction mixes that bound the kernels, as loops that do nothing else: what a kernel's rate is
// held against. `fma` runs from registers; every other mix is named after its kernel family.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gossamer/cpu.hpp"

namespace gossamer {

std::vector<std::string> ceiling_mixes();

// Runs a mix and returns the operations done (2 per multiply-add). Throws std::invalid_argument for
// a mix it does not know.
double run_ceiling(Isa isa, const std::string& mix, int64_t repeats);

}  // namespace gossamer
