// SPDX-License-Identifier: Apache-2.0
#include "gossamer/ceilings.hpp"

#include <stdexcept>

#include "gossamer/panel_layout.hpp"
#include "gossamer/train.hpp"

namespace gossamer {
namespace {

using Mix = double (*)(int64_t repeats);

// One line per mix.
struct Entry {
  const char* name;
  Mix (*of)(Isa isa);
};

const Entry entries[] = {
    {"fma", [](Isa isa) { return panel_kernels(isa).ceilings.fma; }},
    {"panel", [](Isa isa) { return panel_kernels(isa).ceilings.panel; }},
    {"sampled", [](Isa isa) { return sampled_kernels(isa).ceiling; }},
};

}  // namespace

std::vector<std::string> ceiling_mixes() {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.emplace_back(entry.name);
  return names;
}

double run_ceiling(Isa isa, const std::string& mix, int64_t repeats) {
  for (const Entry& entry : entries)
    if (mix == entry.name) return entry.of(isa)(repeats);
  std::string known;
  for (const Entry& entry : entries) known += std::string(known.empty() ? "" : ", ") + entry.name;
  throw std::invalid_argument("mix '" + mix + "' is unknown; known: " + known);
}

}  // namespace gossamer
