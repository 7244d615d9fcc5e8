// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "gossamer/few_layout.hpp"
#include "gossamer/stored_weight.hpp"
#include "row_parts.hpp"

namespace gossamer {
namespace {

// A guess at what makes waking a thread worth it, not measured.
constexpr size_t kBytesPerThread = 128 * 1024;
constexpr int64_t kRowUnit = 16;  // rows of the widest strip

const FewKernels& few_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::few_kernels, avx2::few_kernels, avx512::few_kernels);
#else
  return (void)isa, reference::few_kernels;
#endif
}

FewLayout pack(const KeptWeight& weight, const FewOptions& options, int64_t lanes) {
  switch (options.form) {
    case FewForm::bitmask: return pack_bitmask(weight, options);
    case FewForm::indexed: return pack_indexed(weight, options);
    case FewForm::nm: break;
  }
  return pack_nm(weight, options, lanes);
}

template <class T>
StoredArray stored_array(const T* items, int64_t count) {
  return {items, static_cast<size_t>(count) * sizeof(T)};
}

FewSizes sizes_of(const FewLayout& layout) {
  const auto count = [](const auto& items) { return static_cast<int64_t>(items.size()); };
  return {count(layout.positions),    count(layout.values),     count(layout.row_starts),
          count(layout.scale_starts), count(layout.row_scales), count(layout.scales)};
}

struct FewWeight final : PackedWeight {
  FewLayout layout;  // of a weight that was packed here
  Keeper keeper;     // of one whose arrays are those of a file
  FewView view;
  FewSizes sizes;
  bool is_exact;
  FewForm form;
  FewKernel kernel;

  FewWeight(const KeptWeight& weight, const FewOptions& options, const FewKernels& kernels)
      : layout(pack(weight, options, kernels.lanes)),
        view(few_view(layout)),
        sizes(sizes_of(layout)),
        is_exact(layout.is_exact),
        form(options.form) {
    set_sizes(layout.kept, kernels);
  }
  FewWeight(const FewView& view, FewForm form, const FewSizes& sizes, int64_t num_kept, bool is_exact, Keeper keeper,
            const FewKernels& kernels)
      : keeper(std::move(keeper)), view(view), sizes(sizes), is_exact(is_exact), form(form) {
    set_sizes(num_kept, kernels);
  }

  void set_sizes(int64_t num_kept, const FewKernels& kernels) {
    kernel = kernels.run[static_cast<int>(form)][static_cast<int>(view.type)];
    rows = view.rows;
    columns = view.columns;
    kept = num_kept;
  }

  bool stored(StoredWeight* out) const override {
    out->family = "few";
    out->numbers = {rows,       columns,     kept,       static_cast<int>(form), static_cast<int>(view.type), is_exact, view.mask_stride,
                    view.scale_span, view.window, view.slots, view.lanes,             view.position_bits};
    out->arrays = {stored_array(view.positions, sizes.positions),       stored_array(view.values, sizes.values),
                   stored_array(view.row_starts, sizes.row_starts),     stored_array(view.scale_starts, sizes.scale_starts),
                   stored_array(view.row_scales, sizes.row_scales),     stored_array(view.scales, sizes.scales)};
    return true;
  }

  size_t bytes() const override {
    return static_cast<size_t>(sizes.positions + sizes.values + sizes.scales * 2 + sizes.row_scales * 4 +
                               (sizes.row_starts + sizes.scale_starts) * 8);
  }

  void run(const LinearCall& call, int num_threads) const override {
    run_row_parts(rows, kRowUnit, bytes(), kBytesPerThread, few_scratch_floats(view, call.tokens) * sizeof(float),
                  num_threads, [&](int64_t first, int64_t last, void* scratch) {
                    kernel(view, call, first, last, static_cast<float*>(scratch));
                  });
  }

  bool can_read_rows() const override { return form == FewForm::bitmask; }
  void read_row(int64_t row, float* out) const override { read_bitmask_row(view, row, out); }

  bool is_lossless() const override { return view.type == ValueType::fp32 && is_exact; }

  void unpack(float* values, uint8_t* mask_bits) const override {
    switch (form) {
      case FewForm::bitmask: return unpack_bitmask(view, values, mask_bits);
      case FewForm::indexed: return unpack_indexed(view, values, mask_bits);
      case FewForm::nm: return unpack_nm(view, values, mask_bits);
    }
  }
};

}  // namespace

FewView few_view(const FewLayout& layout) {
  FewView view = layout.view;
  view.positions = layout.positions.data();
  view.values = layout.values.data();
  view.row_starts = layout.row_starts.data();
  view.row_scales = layout.row_scales.data();
  view.scales = layout.scales.data();
  view.scale_starts = layout.scale_starts.data();
  return view;
}

std::string few_refusal(const KeptWeight& weight, int64_t num_values, const FewOptions& options) {
  const bool has_scales = options.type == ValueType::int8 || options.type == ValueType::int4;
  if (options.scale_group < 8 || options.scale_group % 8)
    return "scale_group must be a positive multiple of 8, got " + std::to_string(options.scale_group);
  if (has_scales)
    for (int64_t i = 0; i < num_values; ++i)
      if (!std::isfinite(weight.values[i]))
        return "int8 and int4 need finite values; value " + std::to_string(i) + " is " +
               std::to_string(weight.values[i]);
  if (options.form != FewForm::nm) return "";
  if (options.slots < 1 || options.slots > options.window || options.window > 32)
    return "nm needs 1 <= N <= M <= 32, got N=" + std::to_string(options.slots) +
           ", M=" + std::to_string(options.window);
  for (int64_t r = 0; r < weight.rows; ++r)
    for (int64_t k = 0; k < weight.columns; k += options.window) {
      int64_t count = 0;
      for (int64_t i = k; i < std::min(k + options.window, weight.columns); ++i) count += weight.keeps(r, i);
      if (count > options.slots)
        return "nm expects at most " + std::to_string(options.slots) + " of " + std::to_string(options.window) +
               " kept; row " + std::to_string(r) + ", columns from " + std::to_string(k) + ", keeps " +
               std::to_string(count);
    }
  return "";
}

std::unique_ptr<PackedWeight> pack_few_weight(const KeptWeight& weight, const FewOptions& options, Isa isa) {
  return std::make_unique<FewWeight>(weight, options, few_kernels(isa));
}

std::unique_ptr<PackedWeight> restore_few(const StoredWeight& stored, Isa isa, Keeper keeper) {
  StoredReader read(stored);
  FewView view{};
  view.rows = read.number(0, kMaxStored);
  view.columns = read.number(0, kMaxStored);
  const int64_t num_kept = read.number(0, view.rows * view.columns);
  const auto form = static_cast<FewForm>(read.number(0, 2));
  view.type = static_cast<ValueType>(read.number(0, 3));
  const bool is_exact = read.number(0, 1);
  view.mask_stride = read.number(0, kMaxStored);
  view.scale_span = read.number(0, kMaxStored);
  view.window = read.number(0, 32);
  view.slots = read.number(0, 32);
  view.lanes = read.number(0, 16);
  view.position_bits = read.number(0, 8);
  FewSizes sizes{};
  view.positions = read.array_of<uint8_t>(&sizes.positions);
  view.values = read.array_of<uint8_t>(&sizes.values);
  view.row_starts = read.array_of<int64_t>(&sizes.row_starts);
  view.scale_starts = read.array_of<int64_t>(&sizes.scale_starts);
  view.row_scales = read.array_of<float>(&sizes.row_scales);
  view.scales = read.array_of<uint16_t>(&sizes.scales);
  read.done();
  const FewKernels& kernels = few_kernels(isa);
  StoredReader::expect(form != FewForm::nm || view.lanes == kernels.lanes, "strips are those of other kernels");
  check_few(view, form, sizes, num_kept, is_exact);
  return std::make_unique<FewWeight>(view, form, sizes, num_kept, is_exact, std::move(keeper), kernels);
}

std::unique_ptr<PackedWeight> few_ceiling_weight(FewForm form, Isa isa) {
  // 16 KiB of values: nm and bitmask keep every other column, indexed every tenth. Enough rows that
  // the copy of x does not count.
  const int64_t rows = kRowUnit, columns = form == FewForm::indexed ? 2560 : 512;
  const int64_t period = form == FewForm::indexed ? 10 : 2;
  std::vector<uint8_t> bits(static_cast<size_t>(rows * columns / 8), 0);
  std::vector<float> values;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = r % period; k < columns; k += period) {
      bits[(r * columns + k) / 8] |= static_cast<uint8_t>(1u << (k % 8));
      values.push_back(0.5f);
    }
  return pack_few_weight({values.data(), bits.data(), rows, columns}, {form, ValueType::fp32, 32, 2, 4}, isa);
}

}  // namespace gossamer
