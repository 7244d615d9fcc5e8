// SPDX-License-Identifier: Apache-2.0
// The arrays a FewView points to, and how a weight gets into them.
#pragma once
#include <memory>
#include <vector>

#include "gossamer/big_alloc.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/few.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

struct FewOptions {
  FewForm form;
  ValueType type;
  int64_t scale_group;    // int4: values that share a scale, a multiple of 8
  int64_t slots, window;  // nm: N and M
};

struct FewLayout {
  FewView view{};  // its pointers are set by few_view
  int64_t kept = 0;
  bool is_exact = true;  // false where nm fills a group up: the mask cannot be told from it
  BigVector<uint8_t> positions, values;
  std::vector<int64_t> row_starts, scale_starts;
  std::vector<float> row_scales;
  std::vector<uint16_t> scales;
};

FewView few_view(const FewLayout& layout);
// Bits that hold a position in a window of M, as many bytes as 8 of them take.
constexpr int64_t nm_position_bits(int64_t window) { return window <= 4 ? 2 : window <= 8 ? 3 : window <= 16 ? 4 : 8; }
constexpr int64_t kFewSpareBytes = 64;     // kernels read whole vectors behind the last value
constexpr int64_t kNmSparePositions = 8;   // and 4 bytes for a word of 2 or 3
// Whether a group of form indexed only steps: no other has the same column twice there.
inline bool is_indexed_step(const uint8_t* index) { return index[1] && index[1] == index[2]; }

// Values in the order of the layout, before they are rounded to its type.
struct StoredValues {
  std::vector<float> values;
  std::vector<int32_t> scale_ids;  // int8 and int4: which scale a value uses
  int64_t num_scales = 0;

  void add(float value, int64_t scale_id) {
    values.push_back(value);
    scale_ids.push_back(static_cast<int32_t>(scale_id));
  }
};

// Fills layout.values and its scales. bf16 rounds to nearest, ties to even. int8 and int4 are
// symmetric: scale = largest magnitude / 127 or / 7 (int4: rounded to bf16 first), value / scale to
// nearest, ties to even. Values must be finite for these two.
void encode_values(const StoredValues& stored, FewLayout& layout);

FewLayout pack_bitmask(const KeptWeight& weight, const FewOptions& options);
FewLayout pack_indexed(const KeptWeight& weight, const FewOptions& options);
FewLayout pack_nm(const KeptWeight& weight, const FewOptions& options, int64_t lanes);

// Items of the arrays of a view.
struct FewSizes {
  int64_t positions, values, row_starts, scale_starts, row_scales, scales;
};
// Throws std::invalid_argument unless the arrays have the sizes and the indices the ranges that kernels assume.
void check_few(const FewView& view, FewForm form, const FewSizes& sizes, int64_t kept, bool is_exact);

// fp32 only: values row-major and mask bits (zeroed by the caller).
void unpack_bitmask(const FewView& view, float* values, uint8_t* mask_bits);
void unpack_indexed(const FewView& view, float* values, uint8_t* mask_bits);
void unpack_nm(const FewView& view, float* values, uint8_t* mask_bits);

// One row of the bitmask form as the kernel multiplies it.
void read_bitmask_row(const FewView& view, int64_t row, float* out);

// What is wrong with a weight for `options`, or an empty string.
std::string few_refusal(const KeptWeight& weight, int64_t num_values, const FewOptions& options);

// An fp32 weight that stays in L1. The rate of the kernel itself on it counts row ends and the call: it
// says what memory takes away, it is not the bound of the instructions.
std::unique_ptr<PackedWeight> few_ceiling_weight(FewForm form, Isa isa);

std::unique_ptr<PackedWeight> pack_few_weight(const KeptWeight& weight, const FewOptions& options, Isa isa);

}  // namespace gossamer
