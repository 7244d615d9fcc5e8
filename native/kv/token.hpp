// SPDX-License-Identifier: Apache-2.0
// Queries of one token, as the kernels of a type of page take them.
#pragma once
#include "kv.hpp"
#include "pieces.hpp"

namespace gossamer {

class KvHeads {
 public:
  // Spread as the pages are, if those have four bits.
  KvHeads(KvType type, const KvKernels& kernels, int64_t group, int64_t dim, KvPieces& pieces);
  // Scratch that it takes.
  static int64_t bytes(int64_t group, int64_t dim) { return group * (dim * 5 + 8) + 4 * KvPieces::kUnit; }

  KvQueries of(const float* queries);
  // Of bounds of pages, which have `dim` least and `dim` largest numbers: half of the width of this.
  KvQueries of_bounds(const float* queries);

 private:
  KvType type_;
  const KvKernels& kernels_;
  int64_t group_, dim_;
  float* floats_;
  int8_t* codes_;
  float* scales_;
  int32_t* offsets_;
};

// Of many tokens, 64 at most.
void attend_tiles(const KvMemory& memory, const KvStep& step, int num_threads);

}  // namespace gossamer
