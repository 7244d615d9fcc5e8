// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "gossamer/few_layout.hpp"
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

struct FewWeight final : PackedWeight {
  FewLayout layout;
  FewForm form;
  FewKernel kernel;

  FewWeight(const KeptWeight& weight, const FewOptions& options, const FewKernels& kernels)
      : layout(pack(weight, options, kernels.lanes)),
        form(options.form),
        kernel(kernels.run[static_cast<int>(options.form)][static_cast<int>(options.type)]) {
    rows = weight.rows;
    columns = weight.columns;
    kept = layout.kept;
  }

  size_t bytes() const override {
    return layout.positions.size() + layout.values.size() + layout.scales.size() * sizeof(uint16_t) +
           layout.row_scales.size() * sizeof(float) +
           (layout.row_starts.size() + layout.scale_starts.size()) * sizeof(int64_t);
  }

  void run(const LinearCall& call, int num_threads) const override {
    const FewView view = few_view(layout);
    run_row_parts(rows, kRowUnit, bytes(), kBytesPerThread, few_scratch_floats(view, call.tokens) * sizeof(float),
                  num_threads, [&](int64_t first, int64_t last, void* scratch) {
                    kernel(view, call, first, last, static_cast<float*>(scratch));
                  });
  }

  bool can_read_rows() const override { return form == FewForm::bitmask; }
  void read_row(int64_t row, float* out) const override { read_bitmask_row(layout, row, out); }

  bool is_lossless() const override { return layout.view.type == ValueType::fp32 && layout.is_exact; }

  void unpack(float* values, uint8_t* mask_bits) const override {
    switch (form) {
      case FewForm::bitmask: return unpack_bitmask(layout, values, mask_bits);
      case FewForm::indexed: return unpack_indexed(layout, values, mask_bits);
      case FewForm::nm: return unpack_nm(layout, values, mask_bits);
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
