// SPDX-License-Identifier: Apache-2.0
#include "attention_kernel.hpp"
#include "softmax_kernel.hpp"
#include "spmm_kernel.hpp"
#include "squeeze_kernel.hpp"
#include "vec512.hpp"

namespace gossamer::avx512 {

const GraphKernels graph_kernels = {
    GraphVec::kMostVectors * GraphVec::kLanes,
    spmm<GraphVec, float>,
    max_rows<GraphVec>,
    max_backward<GraphVec>,
    sddmm<GraphVec>,
    softmax<GraphVec>,
    softmax_backward<GraphVec>,
    edge_sum,
    pair_logits<GraphVec>,
    pair_backward<GraphVec>,
    squeeze<GraphVec>,
    spmm<GraphVec, uint16_t>,
};

}  // namespace gossamer::avx512
