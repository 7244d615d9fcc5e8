// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gossamer {

// After fork the OpenMP pool of the parent is gone and libgomp would wait for it for ever: the
// number of threads to use is then 1, else `wanted`.
int usable_threads(int wanted);

}  // namespace gossamer
