// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "gossamer/encoder_model.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/panel_layout.hpp"

namespace gossamer {
namespace {

struct FloatLinear final : PanelLinear {
  PanelLayout layout;
  const EncoderKernels& kernels;

  FloatLinear(PanelLayout packed, const EncoderKernels& chosen) : layout(std::move(packed)), kernels(chosen) {}
  size_t bytes() const override { return layout.bytes(); }
  size_t scratch_bytes() const override { return 0; }
  void run(const float* in, float* out, Activation activation, void*) const override {
    kernels.linear(layout.view(), in, out, bias.data(), activation);
  }
};

struct Int8Linear final : PanelLinear {
  Int8Layout layout;
  const EncoderInt8Kernels& kernels;

  Int8Linear(Int8Layout packed, const EncoderInt8Kernels& chosen) : layout(std::move(packed)), kernels(chosen) {}
  size_t bytes() const override { return layout.bytes(); }
  size_t scratch_bytes() const override {
    return static_cast<size_t>(padded_columns(layout.view()) + 4) * kTileTokens;
  }
  void run(const float* in, float* out, Activation activation, void* scratch) const override {
    const Int8View view = layout.view();
    auto* token_scales = static_cast<float*>(scratch);
    auto* tile = reinterpret_cast<uint8_t*>(token_scales + kTileTokens);
    kernels.quantise(view, in, tile, token_scales);
    kernels.linear(view, tile, token_scales, out, bias.data(), activation);
  }
};

// Quads of neighbours need no shuffles, but hold the zeros among four columns: they pay where few are.
DwordForm form_for(const KeptWeight& weight, int64_t kept) {
  int64_t quads = 0;
  for (int64_t r = 0; r < weight.rows; ++r)
    for (int64_t b = 0; b < weight.mask_stride(); ++b) {
      const uint8_t bits = weight.mask_bits[r * weight.mask_stride() + b];
      quads += ((bits & 15) != 0) + ((bits & 240) != 0);
    }
  return quads * 4 < kept * 2 ? DwordForm::neighbours : DwordForm::panel;
}

}  // namespace

const EncoderKernels& encoder_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::encoder_kernels, avx2::encoder_kernels, avx512::encoder_kernels);
#else
  (void)isa;
  return reference::encoder_kernels;
#endif
}

const EncoderInt8Kernels& encoder_int8_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  const bool has_vnni = has_extension("avx512vnni");
  return pick(isa, reference::encoder_int8_kernels, avx2::encoder_int8_kernels,
              has_vnni ? avx512vnni::encoder_int8_kernels : avx512::encoder_int8_kernels);
#else
  (void)isa;
  return reference::encoder_int8_kernels;
#endif
}

std::shared_ptr<PanelLinear> pack_panel_linear(const KeptWeight& weight, const float* bias, Isa isa,
                                               const LinearPrecision& precision) {
  const int64_t kept = row_starts(weight)[weight.rows];
  std::shared_ptr<PanelLinear> linear;
  if (precision.int8) {
    const Int8Options options = {form_for(weight, kept), precision.activation_bits, precision.activation_scale};
    linear = std::make_shared<Int8Linear>(pack_int8(weight, options, int8_kernels(isa)), encoder_int8_kernels(isa));
  } else {
    const EncoderKernels& kernels = encoder_kernels(isa);
    linear = std::make_shared<FloatLinear>(pack_panel(weight, kernels.shapes), kernels);
  }
  linear->rows = weight.rows;
  linear->columns = weight.columns;
  linear->kept = kept;
  linear->bias.assign(weight.rows + 1, 0.0f);
  if (bias) linear->bias.assign(bias, bias + weight.rows), linear->bias.push_back(0.0f);
  return linear;
}

}  // namespace gossamer
