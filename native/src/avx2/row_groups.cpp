// SPDX-License-Identifier: Apache-2.0
#include "simd/row_groups_kernel.hpp"

namespace gossamer::avx2 {
namespace {

struct Vec {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type zero() { return _mm256_setzero_ps(); }
  static Type broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Type load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Type v) { _mm256_store_ps(p, v); }
  static Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }

  // Four rows of three vectors take all 16 registers. The compiler, left to itself, takes forms of the
  // FMA that overwrite a factor, then moves and spills accumulators of an unrolled loop: 20 % slower.
  static void add_column(Type (&acc)[4][3], const float* weights, const float* x) {
    asm volatile(
        "vmovaps (%[x]), %%ymm12\n\t"
        "vmovaps 32(%[x]), %%ymm13\n\t"
        "vmovaps 64(%[x]), %%ymm14\n\t"
        "vbroadcastss (%[w]), %%ymm15\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %0\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %1\n\t"
        "vfmadd231ps %%ymm14, %%ymm15, %2\n\t"
        "vbroadcastss 4(%[w]), %%ymm15\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %3\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %4\n\t"
        "vfmadd231ps %%ymm14, %%ymm15, %5\n\t"
        "vbroadcastss 8(%[w]), %%ymm15\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %6\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %7\n\t"
        "vfmadd231ps %%ymm14, %%ymm15, %8\n\t"
        "vbroadcastss 12(%[w]), %%ymm15\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %9\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %10\n\t"
        "vfmadd231ps %%ymm14, %%ymm15, %11"
        : "+x"(acc[0][0]), "+x"(acc[0][1]), "+x"(acc[0][2]), "+x"(acc[1][0]), "+x"(acc[1][1]), "+x"(acc[1][2]),
          "+x"(acc[2][0]), "+x"(acc[2][1]), "+x"(acc[2][2]), "+x"(acc[3][0]), "+x"(acc[3][1]), "+x"(acc[3][2])
        : [w] "r"(weights), [x] "r"(x)
        : "ymm12", "ymm13", "ymm14", "ymm15", "memory");
  }
};

// 12 chains of FMAs are as many as 16 registers hold with the operands. N = 2 with 6 vectors is no faster
// than with 4, and has fewer columns in a slab.
constexpr int max_vectors[] = {4, 4, 3};

void row_groups(const RowGroupsView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
                int64_t last_tile, float* scratch) {
  switch (view.num_kept) {
    case 2: return row_groups_width<Vec, 2, max_vectors[0]>(view, call, tile, first_tile, last_tile, scratch);
    case 3: return row_groups_width<Vec, 3, max_vectors[1]>(view, call, tile, first_tile, last_tile, scratch);
    default: return row_groups_width<Vec, 4, max_vectors[2]>(view, call, tile, first_tile, last_tile, scratch);
  }
}

}  // namespace

const RowGroupsKernels row_groups_kernels = {row_groups, Vec::kLanes, max_vectors, ceiling_row_groups<Vec, 4, 3>};

}  // namespace gossamer::avx2
