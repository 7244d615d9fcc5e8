// SPDX-License-Identifier: Apache-2.0
#include "gossamer/ceilings.hpp"

#include <algorithm>
#include <stdexcept>

#include "dense/gemm.hpp"
#include "gossamer/bf16_pairs_layout.hpp"
#include "gossamer/few_layout.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/int8_window.hpp"
#include "gossamer/panel_layout.hpp"
#include "gossamer/row_groups_layout.hpp"
#include "gossamer/scratch.hpp"
#include "gossamer/train.hpp"

namespace gossamer {
namespace {

using Mix = double (*)(int64_t repeats);

// One line per mix.
struct Entry {
  const char* name;
  Mix (*of)(Isa isa);
};

template <FewForm form, Isa isa>
double run_few(int64_t repeats) {
  static const std::unique_ptr<PackedWeight> weight = few_ceiling_weight(form, isa);
  const std::vector<float> x(static_cast<size_t>(weight->columns), 0.25f);
  std::vector<float> y(static_cast<size_t>(weight->rows));
  for (int64_t i = 0; i < repeats; ++i)
    weight->run({x.data(), 1, weight->columns, y.data(), weight->rows, nullptr, Activation::none}, 1);
  return 2.0 * static_cast<double>(weight->kept) * static_cast<double>(repeats);
}

// One group of half zeros for one tile of tokens.
template <Isa isa>
double run_windows(int64_t repeats) {
  constexpr int64_t kRows = kWindowRows, kColumns = kWindowBlock, kTokens = kWindowTokens;
  static const std::vector<float> values(static_cast<size_t>(kRows * kColumns / 2), 1.0f);
  static const std::vector<uint8_t> bits(static_cast<size_t>(kRows * kColumns / 8), 0x5a);
  static const WindowLayout layout = pack_windows({values.data(), bits.data(), kRows, kColumns}, 8);
  const WindowView view = layout.view();
  const auto bytes = static_cast<size_t>(view.num_windows() * kTokens * kWindowBytes);
  auto* scratch = static_cast<uint8_t*>(thread_scratch(kWindowScratchBytes + bytes));
  if (!scratch) throw std::bad_alloc();
  std::fill_n(scratch + kWindowScratchBytes, bytes, uint8_t{61});
  std::vector<float> scales(kTokens, 1.0f), y(kTokens * kRows);
  const WindowTokens call = {scratch + kWindowScratchBytes, kTokens, 1, scales.data(), y.data(), kRows, nullptr, Activation::none};
  for (int64_t i = 0; i < repeats; ++i) window_kernel(isa)(view, 0, 1, call, scratch);
  return 2.0 * static_cast<double>(layout.kept * kTokens) * static_cast<double>(repeats);
}

Mix window_mix(Isa isa) {
  return isa == Isa::avx512 ? run_windows<Isa::avx512>
         : isa == Isa::avx2 ? run_windows<Isa::avx2>
                            : run_windows<Isa::reference>;
}

template <FewForm form>
Mix few_mix(Isa isa) {
  return isa == Isa::avx512 ? run_few<form, Isa::avx512>
         : isa == Isa::avx2 ? run_few<form, Isa::avx2>
                            : run_few<form, Isa::reference>;
}

const Entry entries[] = {
    {"fma", [](Isa isa) { return panel_kernels(isa).ceilings.fma; }},
    {"panel", [](Isa isa) { return panel_kernels(isa).ceilings.panel; }},
    {"int8_panel", [](Isa isa) { return int8_kernels(isa).ceiling_panel; }},
    {"int8_quad", [](Isa isa) { return int8_kernels(isa).ceiling_quad; }},
    {"int8_window", window_mix},
    {"dense/int8", [](Isa isa) { return gemm_kernels(isa).ceiling; }},
    {"bf16_panel", [](Isa isa) { return bf16_kernels(isa).ceiling_panel; }},
    {"bf16_pair", [](Isa isa) { return bf16_kernels(isa).ceiling_pair; }},
    {"strip", [](Isa isa) { return row_groups_kernels(isa).ceiling; }},
    {"nmg", [](Isa isa) { return row_groups_kernels(isa).ceiling; }},
    {"few/bitmask", few_mix<FewForm::bitmask>},
    {"few/indexed", few_mix<FewForm::indexed>},
    {"few/nm", few_mix<FewForm::nm>},
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
