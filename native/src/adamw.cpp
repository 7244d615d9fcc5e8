// SPDX-License-Identifier: Apache-2.0
#include "gossamer/adamw.hpp"

#include <cmath>

#include "in_parallel.hpp"

namespace gossamer {
namespace {

// Entries of a task: 20 bytes each stay in L2.
constexpr int64_t kTask = 32768;

const AdamwKernels& kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::adamw_kernels, avx2::adamw_kernels, avx512::adamw_kernels);
#else
  (void)isa;
  return reference::adamw_kernels;
#endif
}

// Eight mantissas times powers of two: equal numbers have equal bits wherever their code is.
struct CodeTable {
  float values[256];

  explicit CodeTable(bool is_signed) {
    const int top = is_signed ? 127 : 255;
    values[0] = 0.0f;
    for (int level = 1; level <= top; ++level) {
      const int below = top - level;
      values[level] = static_cast<float>(std::ldexp(std::pow(2.0, below % 8 / -8.0), -(below / 8)));
      if (is_signed) values[256 - level] = -values[level];
    }
    if (is_signed) values[128] = -values[127];
  }
};

}  // namespace

const float* code_table(bool is_signed) {
  static const CodeTable of_means(true), of_squares(false);
  return is_signed ? of_means.values : of_squares.values;
}

void adamw_step(const AdamwCall& call, Isa isa, int num_threads) {
  const AdamwKernels& kernels = kernels_of(isa);
  in_parallel((call.count + kTask - 1) / kTask, num_threads, [&](int64_t task) {
    const int64_t first = task * kTask;
    kernels.run(call, first, first + kTask < call.count ? first + kTask : call.count);
  });
}

}  // namespace gossamer
