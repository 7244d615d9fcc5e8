// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "few_int_row.hpp"
#include "gossamer/few_int_layout.hpp"
#include "mask_bytes.hpp"
#include "row_parts.hpp"

namespace gossamer {
namespace {

// Two threads were faster from here on: waking one takes a microsecond or two.
constexpr size_t kBytesPerThread = 24 * 1024;

struct FewIntWeight final : PackedWeight {
  FewIntLayout layout;
  FewIntKernel kernel;

  FewIntWeight(FewIntLayout made, int64_t num_kept, FewIntKernel kernel) : layout(std::move(made)), kernel(kernel) {
    rows = layout.shape.rows;
    columns = layout.shape.columns;
    kept = num_kept;
  }

  size_t bytes() const override {
    return layout.masks.size() * sizeof(uint64_t) + layout.values.size() + (layout.scales.size() + layout.offsets.size()) * sizeof(uint16_t) +
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
    each_weight(view, row, [&](int64_t column, int value, float scale, float offset) {
      if (column < columns) out[column] = scale * static_cast<float>(value) + offset;
    });
  }
};

}  // namespace

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
                                                  FewIntKernel kernel) {
  const int64_t kept = count_bits(weight.mask_bits, weight.rows * weight.mask_stride());
  return std::make_unique<FewIntWeight>(pack_few_int_layout(weight, is_int4, scale_group), kept, kernel);
}

std::unique_ptr<PackedWeight> pack_offset_weight(const OffsetWeight& weight, FewIntKernel kernel) {
  return std::make_unique<FewIntWeight>(pack_offset_layout(weight), weight.rows * weight.columns, kernel);
}

}  // namespace gossamer
