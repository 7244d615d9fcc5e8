// SPDX-License-Identifier: Apache-2.0
// The bf16 kernels against the float64 oracle of the rounded operands, in both forms.
#include "gossamer/bf16_pairs_layout.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

struct Set {
  const char* name;
  Isa isa;
  const Bf16Kernels& kernels;
};

std::vector<Set> sets_to_check() {
  std::vector<Set> sets;
  for (const Isa isa : isas_to_check()) sets.push_back({"bf16 pairs", isa, bf16_kernels(isa)});
#ifdef GOSSAMER_EMULATED_AVX512
  sets.push_back({"bf16 pairs vdpbf16ps", Isa::avx512, avx512bf16::bf16_kernels});
#endif
  return sets;
}

void check_weight(const Weight& weight, std::mt19937& random, Tally& tally) {
  Call call = random_call(random);
  call.rounds_to_bf16 = true;
  const Weight rounded = rounded_to_bf16(weight);
  const unsigned seed = random();
  const DwordForm form = random() % 2 ? DwordForm::panel : DwordForm::neighbours;
  for (const Set& set : sets_to_check()) {
    const Bf16Weight packed(weight.view(), form, set.kernels);
    check_packed(set.name, set.isa, rounded, packed, call, seed, tally);
  }
}

}  // namespace

void check_bf16_pairs(Tally& tally) {
  const int64_t all_rows[] = {0, 1, 17, 64, 129, 513};
  const int64_t all_columns[] = {0, 1, 2, 7, 15, 17, 96, 193, 385};
  const double densities[] = {0.0, 0.05, 0.5, 1.0};
  std::mt19937 random(20240610);
  for (const int64_t rows : all_rows)
    for (const int64_t columns : all_columns)
      for (const double density : densities)
        check_weight(random_weight(rows, columns, density, random), random, tally);
}

void fuzz_bf16_pairs(std::mt19937& random, Tally& tally) {
  const Draw draw = random_draw(random);
  check_weight(random_weight(draw.rows, draw.columns, draw.density, random), random, tally);
}

}  // namespace gossamer::check
