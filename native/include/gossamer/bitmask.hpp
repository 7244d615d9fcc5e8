// SPDX-License-Identifier: Apache-2.0
// Between the kept values of a packed mask and the dense matrix: what a compact layer does in every
// training step. Values are 2, 4 or 8 bytes and are moved, never interpreted.
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer {

// One row: between its kept values and its `columns` dense entries. Nothing behind either is touched.
struct BitmaskKernels {
  void (*expand)(const void* values, const uint8_t* bits, int64_t columns, void* row);
  void (*gather)(const void* row, const uint8_t* bits, int64_t columns, void* values);
};

namespace avx512 { extern const BitmaskKernels bitmask_kernels_2, bitmask_kernels_4; }

// Kept weights of packed rows [rows][ceil(columns / 8)].
int64_t count_mask(const uint8_t* mask_bits, int64_t rows, int64_t columns);

// dense[row][column] = kept value or zero.
void expand_mask(const void* values, const uint8_t* mask_bits, int64_t rows, int64_t columns,
                 int itemsize, void* dense, Isa isa, int num_threads);

// values = kept entries of dense, row-major.
void gather_mask(const void* dense, const uint8_t* mask_bits, int64_t rows, int64_t columns,
                 int itemsize, void* values, Isa isa, int num_threads);

}  // namespace gossamer
