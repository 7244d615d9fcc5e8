#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds DIR/check_kernels: build_check.sh plain|sanitize|simde|static DIR (see check_kernels.cpp).
set -eu
mode=$1
out=$2
cd "$(dirname "$0")/../.."
mkdir -p "$out"
rm -f "$out/check_kernels"

cxx="${CXX:-g++} -std=gnu++17 -fno-math-errno -fopenmp -Wall -Wextra -Werror"
cxx="$cxx -Inative/include -Inative/src"
avx2="-mavx2 -mfma -mbmi2"
avx512="-mavx512f -mavx512bw -mavx512dq -mavx512vl $avx2"
avx512="$avx512 -mprefer-vector-width=512 -Wno-maybe-uninitialized"
avx512vnni="$avx512 -mavx512vnni"
link=
case $mode in
  plain) cxx="$cxx -O3" ;;
  sanitize)
    cxx="$cxx -O1 -g -fno-sanitize-recover=all -fsanitize=address,undefined,float-cast-overflow"
    ;;
  simde)
    cxx="$cxx -O3 -DGOSSAMER_EMULATED_AVX512"
    avx512="$avx2 -Wno-psabi -include native/tests/avx512_simde.hpp"
    avx512vnni=$avx512
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

# Instruction-set flags go to single files, as in CMakeLists.txt.
objects=
compile_all() { # SET FLAGS...
  set_name=$1
  shift
  for source in native/src/"$set_name"/*.cpp; do
    object=$out/${set_name}_$(basename "$source" .cpp).o
    $cxx "$@" -c "$source" -o "$object"
    objects="$objects $object"
  done
}
case $(uname -m) in
  x86_64 | amd64)
    cxx="$cxx -DGOSSAMER_X86"
    compile_all avx2 $avx2
    compile_all avx512 $avx512
    compile_all avx512vnni $avx512vnni
    ;;
esac
$cxx $link native/tests/*.cpp native/src/*.cpp native/src/reference/*.cpp $objects \
  -o "$out/check_kernels"
