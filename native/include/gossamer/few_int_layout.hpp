// SPDX-License-Identifier: Apache-2.0
// The arrays a FewIntView points to, and how a weight gets into them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "gossamer/big_alloc.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/few_int.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

struct FewIntLayout {
  FewIntView shape{};  // its pointers are set by view()
  BigVector<uint64_t> masks;
  BigVector<uint8_t> values;
  std::vector<int64_t> unit_starts;
  std::vector<float> row_scales;
  BigVector<uint16_t> scales, offsets;

  FewIntView view() const;
};

// Rounding as in few_layout.hpp: symmetric, to nearest, ties to even. `scale_group`: kept int4 values that
// share a scale; a scale serves as many steps as keep about that many, at least one. A weight that keeps
// everything has no mask. Values must be finite. Without mask bits, everything
// is kept.
FewIntLayout pack_few_int_layout(const KeptWeight& weight, bool is_int4, int64_t scale_group, int num_threads = 1);

constexpr size_t kIntSpareBytes = 64;  // kernels read whole vectors behind the last value

// Items of the arrays of a view, but for its values.
struct FewIntCounts {
  int64_t masks, units, row_scales, scales, offsets;
};
FewIntCounts few_int_counts(const FewIntView& view);

// Where the values of every kIntRowUnit rows begin, and where all of them end, by the masks.
struct FewIntPlaces {
  std::vector<int64_t> unit_starts;
  int64_t end = 0;
};
FewIntPlaces few_int_places(const FewIntView& view);

// An int4 weight that is on a grid with offsets: codes 0 to 15 [rows][columns], fp16 [rows][groups].
struct OffsetWeight {
  const uint8_t* codes;
  const uint16_t *scales, *offsets;
  int64_t rows, columns;
  int64_t group;  // columns that share a scale and an offset: kIntHalf or a multiple of kIntStep

  int64_t groups() const { return (columns + group - 1) / group; }
};

FewIntLayout pack_offset_layout(const OffsetWeight& weight);

// The kernel for an instruction set: AVX-512 with VNNI, AVX2, or the reference.
FewIntKernel few_int_kernel(Isa isa);

std::unique_ptr<PackedWeight> pack_few_int_weight(const KeptWeight& weight, bool is_int4, int64_t scale_group,
                                                  FewIntKernel kernel, int num_threads = 1);
std::unique_ptr<PackedWeight> pack_offset_weight(const OffsetWeight& weight, FewIntKernel kernel);

}  // namespace gossamer
