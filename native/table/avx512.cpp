// SPDX-License-Identifier: Apache-2.0
#include "table/dots_kernel.hpp"
#include "table/update_kernel.hpp"
#include "table/vec512.hpp"

namespace gossamer::table::avx512 {

const Kernels kernels = {pool_bags<Vec512>, update_rows<Vec512>, top_of_values<Vec512>, encode_rows<Vec512>, pair_dots<Vec512>};

}  // namespace gossamer::table::avx512
