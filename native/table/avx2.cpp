// SPDX-License-Identifier: Apache-2.0
#include "table/dots_kernel.hpp"
#include "table/update_kernel.hpp"
#include "table/vec256.hpp"

namespace gossamer::table::avx2 {

const Kernels kernels = {pool_bags<Vec256>, update_rows<Vec256>, top_of_values<Vec256>, encode_rows<Vec256>, pair_dots<Vec256>};

}  // namespace gossamer::table::avx2
