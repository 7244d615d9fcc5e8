// SPDX-License-Identifier: Apache-2.0
#include "few_int_row.hpp"
#include "gossamer/few_int_layout.hpp"
#include "row_parts.hpp"

namespace gossamer {
namespace {

// Two threads were faster from here on: waking one takes a microsecond or two.
constexpr size_t kBytesPerThread = 24 * 1024;

struct FewIntWeight final : PackedWeight {
  FewIntLayout layout;
  FewIntKernel kernel;

  FewIntWeight(const KeptWeight& weight, bool is_int4, int64_t scale_group, FewIntKernel kernel)
      : layout(pack_few_int_layout(weight, is_int4, scale_group)), kernel(kernel) {
    rows = weight.rows;
    columns = weight.columns;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < weight.mask_stride(); ++i)
        kept += __builtin_popcount(weight.mask_bits[r * weight.mask_stride() + i]);
  }

  size_t bytes() const override {
    return layout.masks.size() * sizeof(uint64_t) + layout.values.size() + layout.scales.size() * sizeof(uint16_t) +
           layout.row_scales.size() * sizeof(float) + layout.unit_starts.size() * sizeof(int64_t);
  }

  void run(const LinearCall& call, int num_threads) const override {
    const FewIntView view = layout.view();
    run_row_parts(rows, kIntRowUnit, bytes(), kBytesPerThread, few_int_scratch_bytes(view), num_threads,
                  [&](int64_t first, int64_t last, void* scratch) { kernel(view, call, first, last, scratch); });
  }

  bool can_read_rows() const override { return true; }

  void read_row(int64_t row, float* out) const override {
    const FewIntView view = layout.view();
    for (int64_t k = 0; k < columns; ++k) out[k] = 0.0f;
    each_weight(view, row, [&](int64_t column, int value, float scale) {
      if (column < columns) out[column] = scale * static_cast<float>(value);
    });
  }
};

}  // namespace

FewIntKernel few_int_kernel(Isa isa) {
#if defined(GOSSAMER_X86) && !defined(GOSSAMER_EMULATED_AVX512)
  if (isa == Isa::avx512 && has_extension("avx512vbmi2")) return avx512vbmi2::few_int_kernel;
#endif
  return (void)isa, reference::few_int_kernel;
}

std::unique_ptr<PackedWeight> pack_few_int_weight(const KeptWeight& weight, bool is_int4, int64_t scale_group,
                                                  FewIntKernel kernel) {
  return std::make_unique<FewIntWeight>(weight, is_int4, scale_group, kernel);
}

}  // namespace gossamer
