// SPDX-License-Identifier: Apache-2.0
#include "attention_kernel.hpp"
#include "vec256.hpp"

namespace gossamer::avx2 {

const AttentionKernels attention_kernels = {forward_tile<AttentionVec>, backward_tile<AttentionVec>,
                                            turn<AttentionVec>, turn_back<AttentionVec>};

}  // namespace gossamer::avx2
