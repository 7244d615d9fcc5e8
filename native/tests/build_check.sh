#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds DIR/check_kernels: build_check.sh plain|sanitize|simde|static DIR (see check_kernels.cpp).
# CXX may be a cross compiler, such as aarch64-linux-gnu-g++: what it builds for decides the files.
set -eu
mode=$1
out=$2
cd "$(dirname "$0")/../.."
mkdir -p "$out"
rm -f "$out/check_kernels"

cxx="${CXX:-g++} -std=gnu++17 -fno-math-errno -fopenmp -Wall -Wextra -Werror"
cxx="$cxx -Inative -Inative/include -Inative/src -Inative/tests"
avx2="-mavx2 -mfma -mbmi2"
avx512="-mavx512f -mavx512bw -mavx512dq -mavx512vl $avx2"
avx512="$avx512 -mprefer-vector-width=512 -Wno-maybe-uninitialized -Wno-uninitialized"
avx512vnni="$avx512 -mavx512vnni"
avx512bf16="$avx512 -mavx512bf16"
avx512vbmi2="$avx512vnni -mavx512vbmi -mavx512vbmi2 -Wno-uninitialized"
link=
case $mode in
  plain) cxx="$cxx -O3" ;;
  sanitize)
    cxx="$cxx -O1 -g1 -fno-sanitize-recover=all -fsanitize=address,undefined,float-cast-overflow"
    ;;
  simde)
    cxx="$cxx -O1 -DGOSSAMER_EMULATED_AVX512"
    avx512="$avx2 -Wno-psabi -include native/tests/avx512_simde.hpp"
    avx512vnni=$avx512
    avx512bf16=$avx512
    ;;
  static)
    cxx="$cxx -O3"
    link=-static
    ;;
  *)
    echo "build_check.sh: unknown mode '$mode'; expected plain, sanitize, simde or static" >&2
    exit 2
    ;;
esac

machine=$(${CXX:-g++} -dumpmachine | cut -d- -f1)
# Instruction-set flags go to single files, as in CMakeLists.txt. One command per line, run side by side.
commands=$out/commands
: >"$commands"
compile_all() { # FOLDER FLAGS...
  folder=$1
  shift
  for source in native/"$folder"/*.cpp; do
    compile_one "$source" "$@"
  done
}
compile_one() { # SOURCE FLAGS...
  source=$1
  shift
  # The check itself stays plain there: GCC 12 for aarch64 fails on its sums (an internal error).
  case $machine:${source##*/} in aarch64:check*) set -- "$@" -fno-tree-vectorize ;; esac
  object=$out/$(echo "${source#native/}" | tr / _).o
  echo "$cxx $* -c $source -o $object" >>"$commands"
}
rm -f "$out"/*.o
case $machine in
  x86_64 | amd64)
    cxx="$cxx -DGOSSAMER_X86"
    compile_all src/avx2 $avx2
    compile_all src/avx512 $avx512
    compile_all src/avx512vnni $avx512vnni
    compile_all src/avx512bf16 $avx512bf16
    # SIMDe does not have these.
    [ "$mode" = simde ] || compile_all src/avx512vbmi2 $avx512vbmi2
    ;;
esac
# Families with a folder of their own: flags follow the name of the file.
for source in native/table/*.cpp native/graph/*.cpp native/tall/*.cpp native/attention/*.cpp native/kv/*.cpp native/dense/*.cpp; do
  flags=
  case $machine:$(basename "$source") in
    *:bind.cpp) continue ;;
    x86_64:avx2.cpp | amd64:avx2.cpp) flags=$avx2 ;;
    x86_64:avx512.cpp | amd64:avx512.cpp) flags=$avx512 ;;
    x86_64:avx512vnni.cpp | amd64:avx512vnni.cpp) flags=$avx512vnni ;;
    *:avx*.cpp) continue ;;
  esac
  case $source in native/table/*) flags="$flags -ffp-contract=off" ;; esac
  compile_one "$source" $flags
done
compile_all src
compile_all src/reference
compile_all tests
xargs -P "$(nproc)" -I COMMAND sh -c COMMAND <"$commands"
$cxx $link "$out"/*.o -o "$out/check_kernels"
