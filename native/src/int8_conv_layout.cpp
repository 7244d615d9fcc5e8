// SPDX-License-Identifier: Apache-2.0
#include "gossamer/int8_conv_layout.hpp"

#include <algorithm>
#include <set>

namespace gossamer {
namespace {

int64_t div_up(int64_t n, int64_t unit) { return n > 0 ? (n + unit - 1) / unit : 0; }

// How columns of one group are cut: whole channels whose slab stays in L1.
DwordCut cut_columns(int64_t block_channels, int64_t channel_bytes, const std::vector<int64_t>& places) {
  DwordCut cut{block_channels * static_cast<int64_t>(places.size()), {}};
  for (int64_t c = 0; c < block_channels; ++c)
    for (const int64_t place : places) cut.offsets.push_back(static_cast<uint16_t>(c * channel_bytes + place));
  return cut;
}

}  // namespace

const Int8ConvKernels& int8_conv_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  const bool has_vnni = &int8_kernels(Isa::avx512) == &avx512vnni::int8_kernels;
  return pick(isa, reference::int8_conv_kernels, avx2::int8_conv_kernels,
              has_vnni ? avx512vnni::int8_conv_kernels : avx512::int8_conv_kernels);
#else
  (void)isa;
  return reference::int8_conv_kernels;
#endif
}

Int8ConvAxis::Int8ConvAxis(int64_t size_, int64_t out_, int64_t kernel, int64_t stride_, int64_t pad_, int64_t dilation)
    : stride(stride_), pad(pad_), size(size_), out(out_), max_shift((kernel - 1) * dilation / stride_) {
  std::set<int64_t> seen;
  for (int64_t k = 0; k < kernel; ++k) seen.insert(k * dilation % stride);
  phases.assign(seen.begin(), seen.end());
  // Zeros in front and behind that all phases have: rows or images may share them.
  length = out + max_shift;
  const int64_t num_phases = static_cast<int64_t>(phases.size());
  int64_t front = first(num_phases - 1), behind = length - last(0);
  length -= std::min({front, behind, max_shift});
}

int64_t Int8ConvAxis::first(int64_t i) const { return std::min(div_up(pad - phases[i], stride), length); }

int64_t Int8ConvAxis::last(int64_t i) const {
  return std::max(std::min(div_up(size + pad - phases[i], stride), length), first(i));
}

Int8Conv::Int8Conv(const KeptWeight& weight, const ConvGeometry& geometry, int activation_bits,
                   const Int8ConvKernels& kernels)
    : kernels_(kernels),
      rows_(weight.rows),
      geometry_(geometry),
      vertical_(geometry.height, geometry.out_h(), geometry.kernel_h, geometry.stride_h, geometry.pad_h,
                geometry.dilation_h),
      horizontal_(geometry.width, geometry.out_w(), geometry.kernel_w, geometry.stride_w, geometry.pad_w,
                  geometry.dilation_w) {
  plan_runs(kernels.widths[0]);
  const int64_t fitting = std::max<int64_t>(kMaxDwordSlab / channel_bytes_, 1);
  const int64_t num_blocks = (geometry.channels + fitting - 1) / fitting;
  block_channels_ = (geometry.channels + num_blocks - 1) / num_blocks;
  const DwordCut cut = cut_columns(block_channels_, channel_bytes_, places_);
  const int64_t rows = weight.rows / geometry.groups;
  int64_t first_value = 0;
  for (int64_t g = 0; g < geometry.groups; ++g) {
    const KeptWeight part = {weight.values + first_value, weight.mask_bits + g * rows * weight.mask_stride(), rows,
                             weight.columns};
    groups_.push_back(pack_int8(part, {DwordForm::image, activation_bits, 0.0f}, *kernels.linear, cut));
    first_value += groups_.back().kept;
  }
}

// Positions of one phase share a run unless the bytes between them are more than a run of their own.
void Int8Conv::plan_runs(int64_t width) {
  const ConvGeometry& g = geometry_;
  struct Position {
    int64_t phase, shift, index;
    bool operator<(const Position& other) const {
      return phase != other.phase ? phase < other.phase : shift < other.shift;
    }
  };
  const auto index_of = [](const std::vector<int64_t>& all, int64_t phase) {
    return std::lower_bound(all.begin(), all.end(), phase) - all.begin();
  };
  std::vector<Position> positions;
  for (int64_t kh = 0; kh < g.kernel_h; ++kh)
    for (int64_t kw = 0; kw < g.kernel_w; ++kw) {
      const int64_t h = kh * g.dilation_h, w = kw * g.dilation_w;
      const auto num_across = static_cast<int64_t>(horizontal_.phases.size());
      const int64_t phase = index_of(vertical_.phases, h % g.stride_h) * num_across +
                            index_of(horizontal_.phases, w % g.stride_w);
      positions.push_back({phase, h / g.stride_h * horizontal_.length + w / g.stride_w, kh * g.kernel_w + kw});
    }
  std::sort(positions.begin(), positions.end());
  width_ = width;
  places_.resize(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    const Position& at = positions[i];
    const int64_t more = i ? at.shift - positions[i - 1].shift : 0;
    if (!i || at.phase != positions[i - 1].phase || more >= width) {
      runs_.push_back({at.phase, at.shift, width, channel_bytes_});
      channel_bytes_ += width;
    } else {
      runs_.back().bytes += more;
      channel_bytes_ += more;
    }
    places_[at.index] = channel_bytes_ - width;
  }
}

int64_t Int8Conv::phase_bytes(int64_t images) const {
  const int64_t rows_behind = vertical_.out + vertical_.max_shift - vertical_.length;
  const int64_t columns_behind = horizontal_.out + horizontal_.max_shift - horizontal_.length;
  return (images * vertical_.length + rows_behind) * horizontal_.length + columns_behind;
}

Int8ConvView Int8Conv::view(int64_t group, int64_t images) const {
  return {groups_[group].view(),
          geometry_.channels,
          block_channels_,
          width_,
          runs_.data(),
          static_cast<int64_t>(runs_.size()),
          channel_bytes_,
          images,
          horizontal_.length,
          vertical_.length * horizontal_.length,
          vertical_.out,
          horizontal_.out,
          phase_bytes(images),
          static_cast<int64_t>(vertical_.phases.size() * horizontal_.phases.size())};
}

size_t Int8Conv::bytes() const {
  size_t total = runs_.size() * sizeof(Int8ConvRun) + places_.size() * sizeof(int64_t);
  for (const Int8Layout& layout : groups_) total += layout.bytes();
  return total;
}

}  // namespace gossamer
