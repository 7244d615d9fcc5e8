// SPDX-License-Identifier: Apache-2.0
// Checks every kernel set this CPU can run against a float64 oracle: pack, unpack, product, bias,
// activation, all remainders of rows, columns and tokens, strides, and 1 against 2 threads.
//
//   make native-test                             with AddressSanitizer and UBSan
//   native/tests/build_check.sh plain DIR        with the flags of the extension module
//   native/tests/build_check.sh sanitize DIR     with -fsanitize=address,undefined
//   native/tests/build_check.sh simde DIR        AVX-512 source on a CPU without it (libsimde-dev)
//   native/tests/run_in_bochs.sh DIR             AVX-512 machine code on a CPU without it (bochs)
//
// check_kernels --fuzz CASES [SEED] runs random cases instead of the fixed walk; a failure prints
// the seed and number of its case.
//
// build_check.sh leaves DIR/check_kernels, which prints one line per family and set and exits with 1 on a
// failure. It is a script because instruction sets need flags per file; the reference alone is one
// command:
//   g++ -std=gnu++17 -O3 -fopenmp -Inative/include -Inative/src native/src/*.cpp
//     native/src/reference/*.cpp native/tests/*.cpp -o check_kernels
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "harness.hpp"

namespace {

using namespace gossamer::check;

struct Family {
  void (*walk)(Tally&);
  void (*random_case)(std::mt19937&, Tally&);
};

const Family families[] = {
    {check_panel, fuzz_panel},
    {check_int8, fuzz_int8},
    {check_bf16_pairs, fuzz_bf16_pairs},
    {check_row_groups, fuzz_row_groups},
    {check_encoder, fuzz_encoder},
    {check_few, fuzz_few},
    {check_few_int, fuzz_few_int},
    {check_absorb, fuzz_absorb},
    {check_adamw, fuzz_adamw},
    {check_train, fuzz_train},
    {check_conv, fuzz_conv},
    {check_conv_net, fuzz_conv_net},
    {check_table, fuzz_table},
    {check_graph, fuzz_graph},
    {check_attention, fuzz_attention},
    {check_kv, fuzz_kv},
    {check_tall, fuzz_tall},
    {check_dense, fuzz_dense},
};

void fuzz(long cases, unsigned long seed, Tally& tally) {
  for (long i = 0; i < cases; ++i) {
    // Each case has its own generator, so that one can be repeated alone.
    std::mt19937 random(static_cast<unsigned>(seed + i));
    const int64_t failures = tally.failures();
    families[i % (sizeof families / sizeof *families)].random_case(random, tally);
    if (tally.failures() > failures) std::printf("  seed %lu, case %ld\n", seed, i);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Tally tally;
  if (argc >= 3 && !std::strcmp(argv[1], "--fuzz")) {
    fuzz(std::atol(argv[2]), argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 1, tally);
  } else if (argc == 1) {
    for (const Family& family : families) family.walk(tally);
  } else {
    std::fprintf(stderr, "usage: check_kernels [--fuzz CASES [SEED]]\n");
    return 2;
  }
  const bool ok = tally.print();
  std::printf(ok ? "check_kernels: ok\n" : "check_kernels: FAILED\n");
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
