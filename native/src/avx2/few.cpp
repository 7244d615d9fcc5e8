// SPDX-License-Identifier: Apache-2.0
#include "simd/few_bitmask.hpp"
#include "simd/few_indexed.hpp"
#include "simd/few_nm.hpp"

namespace gossamer::avx2 {

using V = Vec256;

const FewKernels few_kernels = {{{bitmask<V, Fp32>, bitmask<V, Bf16>, bitmask<V, Int8>, bitmask<V, Int4>},
                                 {indexed<V, Fp32>, indexed<V, Bf16>, indexed<V, Int8>, indexed<V, Int4>},
                                 {nm<V, Fp32>, nm<V, Bf16>, nm<V, Int8>, nm<V, Int4>}},
                                V::kLanes};

}  // namespace gossamer::avx2
