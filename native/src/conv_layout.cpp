// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "gossamer/conv_layout.hpp"

namespace gossamer {
namespace {

// 24 KiB of 32 leave a quarter of L1 to the value stream and the accumulators.
constexpr int64_t kSlabFloats = 6144;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// A 1x1 kernel that moves pixel by pixel does not see rows: no pitch, no lost lanes.
ConvGeometry as_run(ConvGeometry g) {
  const bool pointwise = g.kernel_h == 1 && g.kernel_w == 1 && g.stride_h == 1 && g.stride_w == 1 &&
                         g.pad_h == 0 && g.pad_w == 0;
  if (pointwise && g.pad_end_h == 0 && g.pad_end_w == 0) {
    g.width *= g.height;
    g.height = 1;
  }
  return g;
}

}  // namespace

const ConvKernels& conv_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::conv_kernels, avx2::conv_kernels, avx512::conv_kernels);
#else
  (void)isa;
  return reference::conv_kernels;
#endif
}

bool conv_kernel_fits(const ConvGeometry& geometry) {
  return geometry.kernel_h * geometry.kernel_w <= kMaxConvSlabFloats / 16;
}

PackedConv::PackedConv(const KeptWeight& weight, const ConvGeometry& geometry, const ConvKernels& kernels,
                       int num_threads)
    : kernels_(kernels), rows_(weight.rows), given_(geometry), geometry_(as_run(geometry)) {
  plan_planes();
  fill_masks();
  const int64_t kernel = geometry_.kernel_h * geometry_.kernel_w;
  std::vector<ConvColumn> columns(weight.columns);
  for (int64_t k = 0; k < weight.columns; ++k) {
    const int64_t channel = k / kernel;
    const int64_t place = channel % block_channels_ * channel_floats_ + places_[k % kernel];
    columns[k] = {static_cast<int32_t>(channel / block_channels_), static_cast<uint16_t>(4 * place)};
  }
  const int64_t rows = weight.rows / geometry.groups;
  int64_t first_value = 0;
  for (int64_t g = 0; g < geometry.groups; ++g) {
    const KeptWeight part = {weight.values ? weight.values + first_value : nullptr,
                             weight.mask_bits + g * rows * weight.mask_stride(), rows, weight.columns};
    groups_.push_back(fresh_conv_panel(part, block_channels_ * kernel, columns, num_threads));
    FreshPanel& panel = groups_.back();
    first_value += panel.layout.kept;
    if (weight.values) panel = {std::move(panel.layout), {}, {}, {}};  // the way back is for gradients
  }
}

// Kernel rows with the same phase of the stride share a plane, unless the rows between them are
// longer than planes of their own.
void PackedConv::plan_planes() {
  const ConvGeometry& g = geometry_;
  pitch_ = round_up(g.out_w(), std::min<int64_t>(kernels_.lanes, 8));
  const int64_t lanes = g.out_h() * pitch_;
  max_width_ = std::min(kernels_.max_width, round_up(lanes, kernels_.lanes));
  // Large kernels: one channel's patches must stay in reach.
  while (max_width_ > kernels_.lanes && g.kernel_h * g.kernel_w * max_width_ > kMaxConvSlabFloats)
    max_width_ = round_up(max_width_ / 2, kernels_.lanes);
  tiles_ = (lanes + max_width_ - 1) / max_width_;
  max_width_ = round_up((lanes + tiles_ - 1) / tiles_, kernels_.lanes);
  places_.resize(g.kernel_h * g.kernel_w);
  for (int64_t phase_row = 0; phase_row < g.kernel_h; ++phase_row) {
    const int64_t phase = phase_row * g.dilation_h % g.stride_h;
    std::vector<int64_t> sharers;
    for (int64_t kh = 0; kh < g.kernel_h; ++kh)
      if (kh * g.dilation_h % g.stride_h == phase) sharers.push_back(kh);
    const int64_t more = (sharers.back() - sharers.front()) * g.dilation_h / g.stride_h;
    const bool shared = max_width_ + more * pitch_ < static_cast<int64_t>(sharers.size()) * max_width_;
    if (shared && sharers.front() != phase_row) continue;  // its plane is there already
    const int64_t more_rows = shared ? more : 0;
    for (int64_t kw = 0; kw < g.kernel_w; ++kw) {
      planes_.push_back({phase_row, kw, more_rows, channel_floats_});
      for (const int64_t kh : sharers)
        if (shared || kh == phase_row)
          places_[kh * g.kernel_w + kw] =
              channel_floats_ + (kh - phase_row) * g.dilation_h / g.stride_h * pitch_;
      channel_floats_ += max_width_ + more_rows * pitch_;
    }
  }
  const int64_t fitting = std::max<int64_t>(kSlabFloats / channel_floats_, 1);
  block_channels_ = std::min(fitting, g.channels);
}

void PackedConv::fill_masks() {
  const ConvGeometry& g = geometry_;
  const bool by_column = g.stride_w <= 2;
  mask_lanes_ = round_up(pitch_, 8) * (by_column ? g.stride_w : 1);
  // Two chunks behind the table stand for rows that do not exist.
  masks_.assign((g.kernel_w * mask_lanes_) / 8 + 2, MaskChunk{});
  for (int64_t kw = 0; kw < g.kernel_w; ++kw)
    for (int64_t i = 0; i < mask_lanes_; ++i) {
      const int64_t column = i * (by_column ? 1 : g.stride_w) + kw * g.dilation_w - g.pad_w;
      const int64_t lane = kw * mask_lanes_ + i;
      masks_[lane / 8].lanes[lane % 8] = column >= 0 && column < g.width ? -1 : 0;
    }
}

ConvView PackedConv::view(int64_t group) const {
  return {groups_[group].layout.view(),
          geometry_,
          geometry_.out_h(),
          geometry_.out_w(),
          pitch_,
          max_width_,
          block_channels_,
          channel_floats_,
          round_up(block_channels_ * channel_floats_, 16),
          planes_.data(),
          static_cast<int64_t>(planes_.size()),
          masks_.data()->lanes,
          mask_lanes_};
}

size_t PackedConv::bytes() const {
  size_t total = planes_.size() * sizeof(ConvPlane) + places_.size() * sizeof(int64_t) +
                 masks_.size() * sizeof(MaskChunk);
  for (const FreshPanel& panel : groups_) total += panel.layout.bytes();
  return total;
}

// Tiles of nearly equal widths: a narrow one at the end would cost almost as much as a wide one.
std::vector<ConvTile> PackedConv::pixel_tiles() const {
  const int64_t unit = kernels_.lanes;
  const int64_t units = (geometry_.out_h() * pitch_ + unit - 1) / unit;
  std::vector<ConvTile> tiles;
  for (int64_t i = 0; i < tiles_; ++i) {
    const int64_t first = i * units / tiles_, last = (i + 1) * units / tiles_;
    tiles.push_back({first * unit, static_cast<int>((last - first) * unit), 0, 0});
  }
  return tiles;
}

}  // namespace gossamer
