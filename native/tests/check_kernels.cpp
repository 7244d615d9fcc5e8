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
// build_check.sh leaves DIR/check_kernels, which prints one line per family and set and exits with 1 on a
// failure. It is a script because instruction sets need flags per file; the reference alone is one
// command:
//   g++ -std=gnu++17 -O3 -fopenmp -Inative/include -Inative/src native/src/*.cpp
//     native/src/reference/*.cpp native/tests/*.cpp -o check_kernels
#include <cstdio>
#include <cstdlib>

#include "harness.hpp"

int main() {
  gossamer::check::Tally tally;
  gossamer::check::check_panel(tally);
  gossamer::check::check_conv(tally);
  const bool ok = tally.print();
  std::printf(ok ? "check_kernels: ok\n" : "check_kernels: FAILED\n");
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
