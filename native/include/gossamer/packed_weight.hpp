// SPDX-License-Identifier: Apache-2.0
// A weight packed for one kernel family and one instruction set: what Python holds.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/linear.hpp"

namespace gossamer {

// The canonical arrays every family packs from: kept values row-major, and packed mask bits
// [rows][ceil(columns / 8)], little bit order; no bits where a family says that it takes a weight that keeps everything.
struct KeptWeight {
  const float* values;
  const uint8_t* mask_bits;
  int64_t rows, columns;

  int64_t mask_stride() const { return (columns + 7) / 8; }
  bool keeps(int64_t row, int64_t column) const {
    return mask_bits[row * mask_stride() + (column >> 3)] >> (column & 7) & 1;
  }
};

struct StoredWeight;

// Immutable once packed: run() may be called from several threads at once.
struct PackedWeight {
  int64_t rows = 0, columns = 0, kept = 0;

  virtual ~PackedWeight() = default;
  virtual size_t bytes() const = 0;
  // May throw std::bad_alloc, nothing else.
  virtual void run(const LinearCall& call, int num_threads) const = 0;
  // Whether the kept values can be had back exactly; only then may unpack be called, with the mask
  // bits zeroed.
  virtual bool is_lossless() const { return false; }
  virtual void unpack(float* values, uint8_t* mask_bits) const { (void)values, (void)mask_bits; }
  // Whether read_row may be called: one row as run() multiplies it, zeros included, as tables of
  // embeddings are read.
  virtual bool can_read_rows() const { return false; }
  virtual void read_row(int64_t row, float* out) const { (void)row, (void)out; }
  // Its arrays for a file, which live as long as the weight; false where the family has no such form.
  virtual bool stored(StoredWeight* out) const { return (void)out, false; }
};

}  // namespace gossamer
