// SPDX-License-Identifier: Apache-2.0
#include "graph/vec512.hpp"
#include "grouped_kernel.hpp"
#include "tall_kernel.hpp"

namespace gossamer::avx512 {

const TallKernels tall_kernels = {
    GraphVec::kLanes, most_vectors<GraphVec>(), tile_rows<GraphVec, most_vectors<GraphVec>()>(),
    product<GraphVec>, outer<GraphVec>,
};

const GroupedKernels grouped_kernels = {grouped_rows<GraphVec, 8, 3>, grouped_back<GraphVec, 6, 4>, grouped_outer<GraphVec>};

}  // namespace gossamer::avx512
