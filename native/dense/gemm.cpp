// SPDX-License-Identifier: Apache-2.0
#include "gemm.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dense.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/panel_layout.hpp"
#include "gossamer/scratch.hpp"
#include "in_parallel.hpp"
#include "int8_codes.hpp"
#include "kept_columns.hpp"
#include "row_parts.hpp"

namespace gossamer {
namespace {

// Bytes of activations of a pass: they stay in L2, and so do the results of some rows.
constexpr int64_t kPassBytes = 64 << 10;
constexpr int64_t kPassTokens = 24;  // at least: two tiles share a group
// Two threads were faster from here on: waking one takes a microsecond or two.
constexpr size_t kBytesPerThread = 24 * 1024;

struct GemmWeight final : PackedWeight {
  GemmLayout layout;
  Isa isa;

  GemmWeight(GemmLayout packed, Isa chosen) : layout(std::move(packed)), isa(chosen) {
    rows = layout.rows;
    columns = layout.columns;
    kept = layout.kept;
  }
  size_t bytes() const override { return layout.bytes(); }

  void run(const LinearCall& call, int num_threads) const override {
    const int64_t pass = std::max(kPassTokens, kPassBytes / std::max<int64_t>(columns, 1));
    for (int64_t first = 0; first < call.tokens; first += pass) run_pass(call, first, std::min(pass, call.tokens - first), num_threads);
  }

  void run_pass(const LinearCall& call, int64_t first, int64_t tokens, int num_threads) const {
    const GemmView view = layout.view();
    const GemmKernels& kernels = gemm_kernels(isa);
    const int64_t token_bytes = layout.quads * 4, tiles = (tokens + kernels.tile_tokens - 1) / kernels.tile_tokens;
    auto* scales = static_cast<float*>(thread_scratch(static_cast<size_t>(2 * tokens * token_bytes + tokens * 4), Scratch::images));
    if (!scales) throw std::bad_alloc();
    auto* bytes = reinterpret_cast<uint8_t*>(scales + tokens);
    uint8_t* const turned = tokens == tiles ? bytes : bytes + tokens * token_bytes;
    tokens_to_bytes({call.x + first * call.x_stride, tokens, columns, call.x_stride, layout.activation_bits, bytes, nullptr,
                     scales, token_bytes},
                    isa, num_threads);
    const GemmTokens these = {turned, tokens, tiles, scales, call.y + first * call.y_stride, call.y_stride, call.bias, call.activation};
    if (turned != bytes)
      in_parallel(tiles, num_threads, [&](int64_t tile) { turn(bytes, turned, these.first_of(tile), these.first_of(tile + 1)); });
    const size_t work = layout.bytes() * static_cast<size_t>((tokens + 15) / 16);
    run_row_parts(rows, kGemmRows, work, kBytesPerThread, 64, num_threads, [&](int64_t from, int64_t to, void*) {
      kernels.rows(view, from / kGemmRows, (to + kGemmRows - 1) / kGemmRows, these);
    });
  }

  // One pointer reaches all tokens of a tile: as many as there are would not fit the registers.
  void turn(const uint8_t* bytes, uint8_t* turned, int64_t first, int64_t last) const {
    const int64_t quads = layout.quads, tokens = last - first;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t k = 0; k < quads; ++k)
        std::memcpy(turned + (first * quads + k * tokens + t) * 4, bytes + ((first + t) * quads + k) * 4, 4);
  }
};

}  // namespace

const GemmKernels& gemm_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  const bool has_vnni = has_extension("avx512vnni");
  return pick(isa, reference::gemm_kernels, avx2::gemm_kernels, has_vnni ? avx512vnni::gemm_kernels : avx512::gemm_kernels);
#else
  (void)isa;
  return reference::gemm_kernels;
#endif
}

GemmLayout pack_gemm(const KeptWeight& weight, int activation_bits) {
  GemmLayout layout;
  layout.rows = weight.rows;
  layout.columns = weight.columns;
  layout.quads = (weight.columns + 3) / 4;
  layout.activation_bits = activation_bits;
  const int64_t groups = layout.view().groups(), quad_bytes = kGemmRows * 4;
  layout.codes.assign(static_cast<size_t>(groups * layout.quads * quad_bytes), 0);
  layout.row_scales.assign(static_cast<size_t>(groups * kGemmRows), 1.0f);
  layout.row_starts.assign(static_cast<size_t>(groups * kGemmRows), 0);
  const std::vector<int64_t> starts = row_starts(weight);
  layout.kept = starts.back();
  for (int64_t r = 0; r < weight.rows; ++r) {
    const float* value = weight.values + starts[r];
    const RowCodes codes(value, starts[r + 1] - starts[r]);
    layout.row_scales[r] = codes.scale;
    int8_t* const row = layout.codes.data() + r / kGemmRows * layout.quads * quad_bytes + r % kGemmRows * 4;
    each_kept_column(weight, r, [&](int64_t k) {
      const int8_t code = codes.of(*value++);
      layout.row_starts[r] -= code * activation_offset(activation_bits);
      row[k / 4 * quad_bytes + k % 4] = code;
    });
  }
  return layout;
}

std::unique_ptr<PackedWeight> pack_gemm_weight(const KeptWeight& weight, Isa isa) {
  return std::make_unique<GemmWeight>(pack_gemm(weight, int8_kernels(isa).activation_bits), isa);
}

}  // namespace gossamer
