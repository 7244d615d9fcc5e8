// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "dense/dense.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/int8_window.hpp"
#include "gossamer/scratch.hpp"
#include "in_parallel.hpp"
#include "row_parts.hpp"

namespace gossamer {
namespace {

// Bytes of windows of a pass: they stay in L2.
constexpr int64_t kPassBytes = 512 << 10;
// Two threads were faster from here on: waking one takes a microsecond or two.
constexpr size_t kBytesPerThread = 24 * 1024;

struct WindowWeight final : PackedWeight {
  WindowLayout layout;
  Isa isa;

  WindowWeight(WindowLayout packed, Isa chosen) : layout(std::move(packed)), isa(chosen) {
    rows = layout.rows;
    columns = layout.columns;
    kept = layout.kept;
  }
  size_t bytes() const override { return layout.bytes(); }

  void run(const LinearCall& call, int num_threads) const override {
    const int64_t token_bytes = std::max<int64_t>(layout.view().num_windows() * kWindowBytes, 1);
    const int64_t pass = std::max(kWindowTokens, kPassBytes / token_bytes / kWindowTokens * kWindowTokens);
    for (int64_t first = 0; first < call.tokens; first += pass) run_pass(call, first, std::min(pass, call.tokens - first), num_threads);
  }

  void run_pass(const LinearCall& call, int64_t first, int64_t tokens, int num_threads) const {
    const WindowView view = layout.view();
    // A window more is read than there are columns.
    const int64_t stride = view.num_windows() * kWindowShift + kWindowBytes, token_bytes = view.num_windows() * kWindowBytes;
    auto* windows = static_cast<uint8_t*>(thread_scratch(static_cast<size_t>(tokens * (token_bytes + stride + 4)), Scratch::images));
    if (!windows) throw std::bad_alloc();
    auto* scales = reinterpret_cast<float*>(windows + tokens * token_bytes);
    auto* bytes = reinterpret_cast<uint8_t*>(scales + tokens);
    tokens_to_bytes({call.x + first * call.x_stride, tokens, columns, call.x_stride, layout.activation_bits, bytes, nullptr,
                     scales, stride},
                    isa, num_threads);
    const int64_t tiles = window_tiles(tokens);
    const WindowTokens all = {windows, tokens, tiles, scales, nullptr, call.y_stride, nullptr, call.activation};
    in_parallel(tiles, num_threads, [&](int64_t tile) {
      const int64_t from = all.first_of(tile), width = all.first_of(tile + 1) - from;
      uint8_t* to = windows + from * token_bytes;
      for (int64_t w = 0; w < view.num_windows(); ++w)
        for (int64_t t = 0; t < width; ++t, to += kWindowBytes)
          std::memcpy(to, bytes + (from + t) * stride + w * kWindowShift, kWindowBytes);
    });
    const size_t work = layout.bytes() * static_cast<size_t>((tokens + 15) / 16);
    run_row_parts(rows, kWindowRows, work, kBytesPerThread, kWindowScratchBytes, num_threads,
                  [&](int64_t row, int64_t last, void* scratch) {
                    WindowTokens these = all;
                    these.y = call.y + first * call.y_stride + row;
                    these.bias = call.bias ? call.bias + row : nullptr;
                    window_kernel(isa)(view, row / kWindowRows, (last + kWindowRows - 1) / kWindowRows, these, scratch);
                  });
  }
};

}  // namespace

bool picks_bytes(Isa isa) {
#if defined(GOSSAMER_X86) && !defined(GOSSAMER_EMULATED_AVX512)
  return isa == Isa::avx512 && has_extension("avx512vbmi2");
#else
  return (void)isa, false;
#endif
}

WindowKernel window_kernel(Isa isa) {
#if defined(GOSSAMER_X86) && !defined(GOSSAMER_EMULATED_AVX512)
  if (picks_bytes(isa)) return avx512vbmi2::window_kernel;
#endif
  return (void)isa, reference::window_kernel;
}

WindowsOfPanel windows_of_panel(Isa isa) {
#if defined(GOSSAMER_X86) && !defined(GOSSAMER_EMULATED_AVX512)
  if (picks_bytes(isa)) return avx512vbmi2::windows_of_panel;
#endif
  return isa == Isa::reference ? reference::windows_of_panel : reference::windows_of_quads;
}

std::unique_ptr<PackedWeight> pack_window_weight(const KeptWeight& weight, Isa isa) {
  return std::make_unique<WindowWeight>(pack_windows(weight, int8_kernels(isa).activation_bits), isa);
}

}  // namespace gossamer
