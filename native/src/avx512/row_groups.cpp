// SPDX-License-Identifier: Apache-2.0
#include "simd/row_groups_kernel.hpp"

namespace gossamer::avx512 {
namespace {

struct Vec {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static Type zero() { return _mm512_setzero_ps(); }
  static Type broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Type load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, Type v) { _mm512_store_ps(p, v); }
  static Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
};

// 32 registers would hold more vectors, but wider tiles leave fewer columns in a slab.
constexpr int max_vectors[] = {4, 3, 3};

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

}  // namespace gossamer::avx512
