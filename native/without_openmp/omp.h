// SPDX-License-Identifier: Apache-2.0
// What the bindings ask of OpenMP, for compilers that have none: one thread.
#pragma once
inline int omp_get_max_threads() { return 1; }
