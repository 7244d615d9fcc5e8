// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "gossamer/encoder_model.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/panel_layout.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

struct FloatLinear final : PanelLinear {
  PanelLayout layout;
  const EncoderKernels& kernels;

  FloatLinear(PanelLayout packed, const EncoderKernels& chosen) : layout(std::move(packed)), kernels(chosen) {}
  size_t bytes() const override { return layout.bytes(); }
  size_t scratch_bytes() const override { return 0; }
  bool is_int8() const override { return false; }
  void prepare(const float*, void*) const override {}
  int64_t num_parts() const override { return layout.num_tiles; }
  void run_part(int64_t part, const float* in, float* out, Activation activation, int64_t tokens,
                const void*) const override {
    kernels.linear(layout.view(), part, in, out, bias.data(), activation, tokens);
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
  bool is_int8() const override { return true; }
  void prepare(const float* in, void* scratch) const override {
    auto* token_scales = static_cast<float*>(scratch);
    kernels.quantise(layout.view(), in, reinterpret_cast<uint8_t*>(token_scales + kTileTokens), token_scales);
  }
  int64_t num_parts() const override { return layout.num_tiles; }
  void run_part(int64_t part, const float*, float* out, Activation activation, int64_t tokens,
                const void* scratch) const override {
    const auto* token_scales = static_cast<const float*>(scratch);
    const auto* bytes = reinterpret_cast<const uint8_t*>(token_scales + kTileTokens);
    kernels.linear(layout.view(), part, bytes, token_scales, out, bias.data(), activation, tokens);
  }
};

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

void PanelLinear::run(const float* in, float* out, Activation activation, int64_t tokens, void* scratch,
                      int num_threads) const {
  prepare(in, scratch);
  run_tasks(num_parts(), num_threads, [&](int64_t part) {
    run_part(part, in, out, activation, tokens, scratch);
    return true;
  });
}

std::unique_ptr<PanelLinear> pack_panel_linear(const KeptWeight& weight, const float* bias, Isa isa,
                                               const Int8Options* int8) {
  const int64_t kept = row_starts(weight)[weight.rows];
  std::unique_ptr<PanelLinear> linear;
  if (int8) {
    linear = std::make_unique<Int8Linear>(pack_int8(weight, *int8, int8_kernels(isa)), encoder_int8_kernels(isa));
  } else {
    const EncoderKernels& kernels = encoder_kernels(isa);
    linear = std::make_unique<FloatLinear>(pack_panel(weight, kernels.shapes, true), kernels);
  }
  linear->rows = weight.rows;
  linear->columns = weight.columns;
  linear->kept = kept;
  linear->bias.assign(weight.rows, 0.0f);
  if (bias) std::copy_n(bias, weight.rows, linear->bias.begin());
  return linear;
}

}  // namespace gossamer
