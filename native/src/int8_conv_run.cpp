// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <new>

#include "gossamer/fork.hpp"
#include "gossamer/int8_conv_layout.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// Quantised images that wait for their products: they stay in L2 or in a core's part of L3.
constexpr int64_t kMaxStrings = int64_t{1} << 20;
constexpr int64_t kPartChannels = 16;  // what one thread measures or quantises at a time

// Every stride-th byte of `from`; the usual strides with a number the compiler knows.
void pick_bytes(const uint8_t* from, int64_t stride, int64_t num, uint8_t* to) {
  if (stride == 1)
    std::memcpy(to, from, static_cast<size_t>(num));
  else if (stride == 2)
    for (int64_t i = 0; i < num; ++i) to[i] = from[2 * i];
  else
    for (int64_t i = 0; i < num; ++i) to[i] = from[stride * i];
}

std::vector<Int8ConvTile> lane_tiles(const int* widths, int64_t lanes) {
  std::vector<Int8ConvTile> tiles;
  for (int64_t first = 0; first < lanes;) {
    const int* width = widths;
    while (width[1] && lanes - first <= width[1]) ++width;
    tiles.push_back({first, *width, 0, 0});
    first += *width;
  }
  return tiles;
}

}  // namespace

int64_t Int8Conv::images_together(int64_t images) const {
  const int64_t phases = static_cast<int64_t>(vertical_.phases.size() * horizontal_.phases.size());
  const int64_t image_bytes =
      geometry_.groups * geometry_.channels * phases * vertical_.length * horizontal_.length;
  const int64_t most = std::max<int64_t>(kMaxStrings / image_bytes, 1), rounds = (images + most - 1) / most;
  return (images + rounds - 1) / rounds;
}

// One channel of one image into its strings. `pixels` holds its bytes on the way.
void Int8Conv::place_channel(const float* x, float inverse, int64_t image, int64_t images, uint8_t* pixels,
                             uint8_t* strings) const {
  const int64_t height = geometry_.height, width = geometry_.width, pitch = horizontal_.length;
  const int64_t string_bytes = phase_bytes(images), image_lanes = vertical_.length * pitch;
  const int bits = activation_bits(), zero = activation_offset(bits);
  if (image_lanes == height * width && vertical_.stride == 1 && horizontal_.stride == 1 && !vertical_.pad &&
      !horizontal_.pad)
    return kernels_.quantise(x, height * width, inverse, bits, strings + image * image_lanes);
  kernels_.quantise(x, height * width, inverse, bits, pixels);
  for (size_t ph = 0; ph < vertical_.phases.size(); ++ph)
    for (size_t pw = 0; pw < horizontal_.phases.size(); ++pw, strings += string_bytes) {
      uint8_t* to = strings + image * image_lanes;
      const int64_t first = horizontal_.first(pw), last = horizontal_.last(pw);
      const int64_t column = first * horizontal_.stride + horizontal_.phases[pw] - horizontal_.pad;
      for (int64_t row = 0; row < vertical_.length; ++row, to += pitch) {
        const int64_t h = row * vertical_.stride + vertical_.phases[ph] - vertical_.pad;
        if (h < 0 || h >= height || first == last) {
          std::memset(to, zero, static_cast<size_t>(pitch));
          continue;
        }
        std::memset(to, zero, static_cast<size_t>(first));
        pick_bytes(pixels + h * width + column, horizontal_.stride, last - first, to + first);
        std::memset(to + last, zero, static_cast<size_t>(pitch - last));
      }
      if (image == images - 1) std::memset(to, zero, static_cast<size_t>(strings + string_bytes - to));
    }
}

// Scales first, since every channel of an image needs the one of all; then strings.
void Int8Conv::quantise(const float* x, int64_t images, uint8_t* strings, float* scales, int num_threads) const {
  const int64_t channels = geometry_.groups * geometry_.channels, pixels = geometry_.height * geometry_.width;
  const int64_t parts = (channels + kPartChannels - 1) / kPartChannels;
  const Int8ConvView conv = view(0, images);
  std::vector<uint32_t> largest(static_cast<size_t>(images * parts));
  std::vector<float> inverses(static_cast<size_t>(images));
  run_tasks(images * parts, num_threads, [&](int64_t i) {
    const int64_t first = i % parts * kPartChannels, num = std::min(kPartChannels, channels - first);
    largest[i] = kernels_.largest(x + (i / parts * channels + first) * pixels, num * pixels);
    return true;
  });
  for (int64_t image = 0; image < images; ++image) {
    const auto begin = largest.begin() + image * parts;
    const TokenScale scale = token_scale(*std::max_element(begin, begin + parts), conv.product);
    scales[image] = scale.scale;
    inverses[image] = scale.inverse;
  }
  run_tasks(images * parts, num_threads, [&](int64_t i) {
    const int64_t image = i / parts, first = i % parts * kPartChannels;
    uint8_t* bytes = static_cast<uint8_t*>(thread_scratch(static_cast<size_t>(pixels)));
    if (!bytes) return false;
    for (int64_t c = first; c < std::min(first + kPartChannels, channels); ++c)
      place_channel(x + (image * channels + c) * pixels, inverses[image], image, images, bytes,
                    strings + c * conv.num_phases * conv.phase_bytes);
    return true;
  });
}

void Int8Conv::run(const float* x, int64_t images, float* y, const float* added, const float* bias,
                   Activation activation, int num_threads) const {
  const int64_t num_groups = geometry_.groups, group_rows = rows_ / num_groups;
  const int64_t out_pixels = vertical_.out * horizontal_.out;
  const int64_t image_floats = num_groups * geometry_.channels * geometry_.height * geometry_.width;
  num_threads = usable_threads(num_threads);
  const int64_t together = images_together(images);
  std::vector<float> scales(static_cast<size_t>(together));
  for (int64_t image = 0; image < images; image += together) {
    const int64_t num = std::min(together, images - image);
    std::vector<Int8ConvView> views;
    for (int64_t g = 0; g < num_groups; ++g) views.push_back(view(g, num));
    const Int8ConvView& any = views[0];
    const int64_t group_bytes = any.channels * any.num_phases * any.phase_bytes;
    auto* strings = static_cast<uint8_t*>(
        thread_scratch(static_cast<size_t>(num_groups * group_bytes + kInt8ConvSlack), Scratch::images));
    if (!strings) throw std::bad_alloc();
    quantise(x + image * image_floats, num, strings, scales.data(), num_threads);

    const std::vector<Int8ConvTile> tiles =
        lane_tiles(kernels_.widths, (num - 1) * any.image_lanes + any.out_h * any.pitch);
    const int64_t num_tiles = static_cast<int64_t>(tiles.size()), row_tiles = any.product.num_tiles;
    // Pixel tiles share nothing; row tiles of one pixel tile each copy its slabs again.
    const bool is_even = num_tiles * num_groups % num_threads == 0 || num_tiles * num_groups >= 4 * num_threads;
    const int64_t splits = is_even ? 1 : row_tiles;
    run_tasks(num_tiles * num_groups * splits, num_threads, [&](int64_t i) {
      const int64_t part = i % splits, group = i / splits / num_tiles;
      Int8ConvTile tile = tiles[i / splits % num_tiles];
      tile.first_tile = splits == 1 ? 0 : part;
      tile.last_tile = splits == 1 ? row_tiles : part + 1;
      void* scratch = thread_scratch(int8_conv_scratch_bytes(views[group], tile.width));
      if (!scratch) return false;
      const int64_t first = (image * rows_ + group * group_rows) * out_pixels;
      const Int8ConvCall call = {strings + group * group_bytes,
                                 scales.data(),
                                 y + first,
                                 added ? added + first : nullptr,
                                 rows_ * out_pixels,
                                 bias ? bias + group * group_rows : nullptr,
                                 activation};
      kernels_.run(views[group], call, tile, scratch);
      return true;
    });
  }
}

}  // namespace gossamer
