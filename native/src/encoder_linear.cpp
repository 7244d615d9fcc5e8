// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "dense/gemm.hpp"
#include "gossamer/encoder_model.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/int8_window.hpp"
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
  void prepare(const float*, int64_t, void*) const override {}
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
  void prepare(const float* in, int64_t tokens, void* scratch) const override {
    auto* token_scales = static_cast<float*>(scratch);
    kernels.quantise(layout.view(), in, reinterpret_cast<uint8_t*>(token_scales + kTileTokens), token_scales, tokens);
  }
  int64_t num_parts() const override { return layout.num_tiles; }
  void run_part(int64_t part, const float*, float* out, Activation activation, int64_t tokens,
                const void* scratch) const override {
    const auto* token_scales = static_cast<const float*>(scratch);
    const auto* bytes = reinterpret_cast<const uint8_t*>(token_scales + kTileTokens);
    kernels.linear(layout.view(), part, bytes, token_scales, out, bias.data(), activation, tokens);
  }
};

// What quantising asks of a weight.
template <class Layout>
Int8View quads_of(const Layout& layout) {
  Int8View view = {};
  view.columns = layout.columns;
  view.form = DwordForm::neighbours;
  view.activation_bits = layout.activation_bits;
  return view;
}

struct DenseLinear final : PanelLinear {
  GemmLayout layout;
  const GemmKernels& kernels;
  const EncoderInt8Kernels& tokens_as_bytes;

  DenseLinear(GemmLayout packed, Isa isa)
      : layout(std::move(packed)), kernels(gemm_kernels(isa)), tokens_as_bytes(encoder_int8_kernels(isa)) {}
  size_t bytes() const override { return layout.bytes(); }
  size_t scratch_bytes() const override { return static_cast<size_t>(padded_columns(quads_of(layout)) + 4) * kTileTokens; }
  bool is_int8() const override { return true; }
  void prepare(const float* in, int64_t tokens, void* scratch) const override {
    auto* token_scales = static_cast<float*>(scratch);
    tokens_as_bytes.quantise(quads_of(layout), in, reinterpret_cast<uint8_t*>(token_scales + kTileTokens), token_scales, tokens);
  }
  int64_t num_parts() const override { return (layout.view().groups() + kGemmGroups - 1) / kGemmGroups; }
  void run_part(int64_t part, const float*, float* out, Activation activation, int64_t tokens,
                const void* scratch) const override {
    const auto* token_scales = static_cast<const float*>(scratch);
    const auto* in = reinterpret_cast<const uint8_t*>(token_scales + kTileTokens);
    const GemmView view = layout.view();
    kernels.panel(view, part * kGemmGroups, std::min((part + 1) * kGemmGroups, view.groups()),
                  {in, token_scales, out, bias.data(), activation, tokens});
  }
};

// Rows are lanes there: results of a part are turned back into its panel.
struct WindowLinear final : PanelLinear {
  static constexpr int64_t kGroups = kWindowGroups, kPartRows = kGroups * kWindowRows;
  WindowLayout layout;
  Isa isa;
  const EncoderKernels& kernels;
  const EncoderInt8Kernels& tokens_as_bytes;

  WindowLinear(WindowLayout packed, Isa chosen)
      : layout(std::move(packed)), isa(chosen), kernels(encoder_kernels(chosen)), tokens_as_bytes(encoder_int8_kernels(chosen)) {}
  size_t bytes() const override { return layout.bytes(); }
  size_t quad_bytes() const { return static_cast<size_t>(padded_columns(quads_of(layout))) * kTileTokens; }
  size_t scratch_bytes() const override {
    return kTileTokens * (sizeof(float) + static_cast<size_t>(layout.view().num_windows() * kWindowBytes)) + quad_bytes();
  }
  bool is_int8() const override { return true; }
  void prepare(const float* in, int64_t tokens, void* scratch) const override {
    auto* token_scales = static_cast<float*>(scratch);
    auto* quads = reinterpret_cast<uint8_t*>(token_scales + kTileTokens);
    tokens_as_bytes.quantise(quads_of(layout), in, quads, token_scales, tokens);
    windows_of_panel(isa)(quads, layout.view().num_windows(), layout.columns, tokens, quads + quad_bytes());
  }
  int64_t num_parts() const override { return (layout.view().groups() + kGroups - 1) / kGroups; }
  void run_part(int64_t part, const float*, float* out, Activation activation, int64_t tokens,
                const void* scratch) const override {
    alignas(64) float y[kTileTokens * kPartRows];
    alignas(64) uint8_t sums[kWindowScratchBytes];
    const auto* token_scales = static_cast<const float*>(scratch);
    const auto* windows = reinterpret_cast<const uint8_t*>(token_scales + kTileTokens) + quad_bytes();
    const WindowView view = layout.view();
    const int64_t row = part * kPartRows, num_rows = std::min(kPartRows, rows - row);
    window_kernel(isa)(view, part * kGroups, std::min((part + 1) * kGroups, view.groups()),
                       {windows, tokens, window_tiles(tokens), token_scales, y, kPartRows, bias.data() + row, activation}, sums);
    kernels.to_panel(y, kPartRows, tokens, num_rows, out + row * kTileTokens);
  }
};

std::unique_ptr<PanelLinear> finished(std::unique_ptr<PanelLinear> linear, const KeptWeight& weight, const float* bias) {
  linear->rows = weight.rows;
  linear->columns = weight.columns;
  linear->kept = row_starts(weight)[weight.rows];
  linear->bias.assign(weight.rows, 0.0f);
  if (bias) std::copy_n(bias, weight.rows, linear->bias.begin());
  return linear;
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

void PanelLinear::run(const float* in, float* out, Activation activation, int64_t tokens, void* scratch,
                      int num_threads) const {
  prepare(in, tokens, scratch);
  run_tasks(num_parts(), num_threads, [&](int64_t part) {
    run_part(part, in, out, activation, tokens, scratch);
    return true;
  });
}

std::unique_ptr<PanelLinear> pack_panel_linear(const KeptWeight& weight, const float* bias, Isa isa,
                                               const Int8Options* int8) {
  if (int8) {
    return finished(std::make_unique<Int8Linear>(pack_int8(weight, *int8, int8_kernels(isa)), encoder_int8_kernels(isa)),
                    weight, bias);
  }
  const EncoderKernels& kernels = encoder_kernels(isa);
  return finished(std::make_unique<FloatLinear>(pack_panel(weight, kernels.shapes, true), kernels), weight, bias);
}

std::unique_ptr<PanelLinear> pack_dense_linear(const KeptWeight& weight, const float* bias, Isa isa) {
  return finished(std::make_unique<DenseLinear>(pack_gemm(weight, int8_kernels(isa).activation_bits), isa), weight, bias);
}

std::unique_ptr<PanelLinear> pack_window_linear(const KeptWeight& weight, const float* bias, Isa isa) {
  return finished(std::make_unique<WindowLinear>(pack_windows(weight, int8_kernels(isa).activation_bits), isa), weight, bias);
}

}  // namespace gossamer
