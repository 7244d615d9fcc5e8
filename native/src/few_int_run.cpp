// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "few_int_row.hpp"
#include "gossamer/few_int_layout.hpp"
#include "gossamer/stored_weight.hpp"
#include "mask_bytes.hpp"
#include "row_parts.hpp"

namespace gossamer {
namespace {

// Two threads were faster from here on: waking one takes a microsecond or two.
constexpr size_t kBytesPerThread = 24 * 1024;

template <class T>
StoredArray stored_array(const T* items, int64_t count) {
  return {items, static_cast<size_t>(count) * sizeof(T)};
}

struct FewIntWeight final : PackedWeight {
  FewIntLayout layout;  // of a weight that was packed here
  Keeper keeper;        // of one whose arrays are those of a file
  FewIntView view;
  int64_t num_values;
  FewIntKernel kernel;

  FewIntWeight(FewIntLayout made, int64_t num_kept, FewIntKernel kernel)
      : layout(std::move(made)), view(layout.view()), num_values(static_cast<int64_t>(layout.values.size())), kernel(kernel) {
    set_sizes(num_kept);
  }
  FewIntWeight(const FewIntView& view, int64_t num_values, int64_t num_kept, Keeper keeper, FewIntKernel kernel)
      : keeper(std::move(keeper)), view(view), num_values(num_values), kernel(kernel) {
    set_sizes(num_kept);
  }

  void set_sizes(int64_t num_kept) {
    rows = view.rows;
    columns = view.columns;
    kept = num_kept;
  }

  bool stored(StoredWeight* out) const override {
    const FewIntCounts counts = few_int_counts(view);
    out->family = "few_int";
    out->numbers = {rows, columns, kept, view.is_int4, view.span, view.scales_of_row, view.has_halves,
                    view.masks != nullptr, view.offsets != nullptr};
    out->arrays = {stored_array(view.masks, counts.masks),           stored_array(view.values, num_values),
                   stored_array(view.unit_starts, counts.units),     stored_array(view.row_scales, counts.row_scales),
                   stored_array(view.scales, counts.scales),         stored_array(view.offsets, counts.offsets)};
    return true;
  }

  size_t bytes() const override {
    const FewIntCounts counts = few_int_counts(view);
    return static_cast<size_t>(num_values + counts.masks * 8 + counts.units * 8 + counts.row_scales * 4 +
                               (counts.scales + counts.offsets) * 2);
  }

  void run(const LinearCall& call, int num_threads) const override {
    run_row_parts(rows, kIntRowUnit, bytes(), kBytesPerThread, few_int_scratch_bytes(view), num_threads,
                  [&](int64_t first, int64_t last, void* scratch) { kernel(view, call, first, last, scratch); });
  }

  bool can_read_rows() const override { return true; }

  void read_row(int64_t row, float* out) const override {
    for (int64_t k = 0; k < columns; ++k) out[k] = 0.0f;
    each_weight(view, row, [&](int64_t column, int value, float scale, float offset) {
      if (column < columns) out[column] = scale * static_cast<float>(value) + offset;
    });
  }
};

// Bytes of the values of every row, and where those of every unit begin, are what the masks say.
void check_places(const FewIntView& view, int64_t num_values) {
  const FewIntPlaces places = few_int_places(view);
  StoredReader::expect(places.end + static_cast<int64_t>(kIntSpareBytes) == num_values, "values do not fit the mask");
  for (size_t i = 0; i < places.unit_starts.size(); ++i)
    StoredReader::expect(view.unit_starts[i] == places.unit_starts[i], "rows do not begin where the mask says");
}

}  // namespace

std::unique_ptr<PackedWeight> restore_few_int(const StoredWeight& stored, Isa isa, Keeper keeper) {
  StoredReader read(stored);
  FewIntView view{};
  view.rows = read.number(0, kMaxStored);
  view.columns = read.number(0, kMaxStored);
  view.steps = (view.columns + kIntStep - 1) / kIntStep;
  const int64_t all = view.rows * view.columns, num_kept = read.number(0, all);
  view.is_int4 = read.number(0, 1);
  view.span = read.number(1, kMaxStored);
  view.scales_of_row = read.number(0, kMaxStored);
  view.has_halves = read.number(0, 1);
  const bool has_masks = read.number(0, 1), has_offsets = read.number(0, 1);
  StoredReader::expect(!has_offsets || (view.is_int4 && !has_masks), "offsets go with int4 without a mask");
  StoredReader::expect(!view.has_halves || (has_offsets && view.span == 1), "halves go with offsets");
  StoredReader::expect(view.scales_of_row == (view.has_halves ? (view.columns + kIntHalf - 1) / kIntHalf
                                                              : (view.steps + view.span - 1) / view.span),
                       "scales do not fit the columns");
  // Counts of arrays that are there or not; their addresses stand for that until they are known.
  view.masks = has_masks ? reinterpret_cast<const uint64_t*>(&view) : nullptr;
  view.offsets = has_offsets ? reinterpret_cast<const uint16_t*>(&view) : nullptr;
  const FewIntCounts counts = few_int_counts(view);
  view.masks = read.array<uint64_t>(counts.masks);
  int64_t num_values = 0;
  view.values = read.array_of<uint8_t>(&num_values);
  view.unit_starts = read.array<int64_t>(counts.units);
  view.row_scales = read.array<float>(counts.row_scales);
  view.scales = read.array<uint16_t>(counts.scales);
  view.offsets = read.array<uint16_t>(counts.offsets);
  read.done();
  StoredReader::expect(num_kept == (view.masks ? count_bits(reinterpret_cast<const uint8_t*>(view.masks), counts.masks * 8) : has_masks ? 0 : all),
                       "the mask keeps another number of weights");
  const int64_t last = view.columns % kIntStep;
  for (int64_t r = 0; view.masks && last && r < view.rows; ++r)
    StoredReader::expect(!(view.masks[(r + 1) * view.steps - 1] >> last), "the mask has bits beyond the last column");
  check_places(view, num_values);
  return std::make_unique<FewIntWeight>(view, num_values, num_kept, std::move(keeper), few_int_kernel(isa));
}

FewIntKernel few_int_kernel(Isa isa) {
#ifdef GOSSAMER_X86
#ifndef GOSSAMER_EMULATED_AVX512
  if (isa == Isa::avx512 && has_extension("avx512vbmi2")) return avx512vbmi2::few_int_kernel;
  if (isa == Isa::avx512 && has_extension("avx512vnni")) return avx512vnni::few_int_kernel;
#endif
  if (isa != Isa::reference) return avx2::few_int_kernel;
#endif
  return (void)isa, reference::few_int_kernel;
}

std::unique_ptr<PackedWeight> pack_few_int_weight(const KeptWeight& weight, bool is_int4, int64_t scale_group,
                                                  FewIntKernel kernel, int num_threads) {
  const int64_t kept = weight.mask_bits ? count_bits(weight.mask_bits, weight.rows * weight.mask_stride())
                                        : weight.rows * weight.columns;
  return std::make_unique<FewIntWeight>(pack_few_int_layout(weight, is_int4, scale_group, num_threads), kept, kernel);
}

std::unique_ptr<PackedWeight> pack_offset_weight(const OffsetWeight& weight, FewIntKernel kernel) {
  return std::make_unique<FewIntWeight>(pack_offset_layout(weight), weight.rows * weight.columns, kernel);
}

}  // namespace gossamer
