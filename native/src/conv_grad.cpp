// SPDX-License-Identifier: Apache-2.0
// The gradient of a convolution's kept weights over threads.
#include <algorithm>

#include "gossamer/conv_layout.hpp"
#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// Weights too small to be shared by this many threads are shared by images.
constexpr int64_t kMinParts = 8;

}  // namespace

// A sum runs over the images and pixels of its part in one order, and the number of parts depends on
// the sizes alone: results do not depend on the number of threads.
void PackedConv::grad_values(const float* x, const float* grad, int64_t images, float* values,
                             int num_threads) const {
  const int64_t num_groups = given_.groups;
  const std::vector<ConvTile> tiles = pixel_tiles();
  const int64_t x_size = geometry_.channels * geometry_.height * geometry_.width;
  const int64_t y_size = rows_ / num_groups * geometry_.out_h() * geometry_.out_w();
  num_threads = usable_threads(num_threads);
  const int64_t row_tiles = groups_[0].layout.num_tiles, num_blocks = groups_[0].layout.num_blocks;
  const int64_t together = tiles_together(), splits = (row_tiles + together - 1) / together;
  const int64_t cells = num_groups * splits * num_blocks;
  const int64_t parts = std::max<int64_t>(std::min(images, kMinParts / std::max<int64_t>(cells, 1)), 1);
  // Each range of blocks reads dY again: one range where there are tasks enough.
  const int64_t num_wide = parts * num_groups * splits;
  const bool is_even = num_wide % num_threads == 0 || num_wide >= 4 * num_threads;
  const int64_t ranges = is_even ? 1 : std::min<int64_t>(num_blocks, num_threads);
  std::vector<std::vector<float>> sums(parts * num_groups);
  for (size_t i = 0; i < sums.size(); ++i) sums[i].assign(groups_[i % num_groups].layout.offsets.size(), 0.0f);
  const auto task = [&](int64_t i) {
    const int64_t range = i % ranges, split = i / ranges % splits, group = i / ranges / splits % num_groups;
    const int64_t part = i / ranges / splits / num_groups;
    const ConvView conv = view(group);
    const int64_t last_image = (part + 1) * images / parts;
    for (int64_t image = part * images / parts; image < last_image; ++image)
      for (ConvTile tile : tiles) {
        tile.first_tile = split * together;
        tile.last_tile = std::min(tile.first_tile + together, row_tiles);
        float* scratch = static_cast<float*>(thread_scratch(conv_scratch_floats(conv, tile) * sizeof(float)));
        if (!scratch) return false;
        const int64_t at = image * num_groups + group;
        const ConvImage from = {x + at * x_size, x, x + images * num_groups * x_size};
        kernels_.add_grad(conv, from, grad + at * y_size, tile, range * num_blocks / ranges,
                          (range + 1) * num_blocks / ranges, scratch, sums[part * num_groups + group].data());
      }
    return true;
  };
  run_tasks(num_wide * ranges, num_threads, task);
  for (int64_t g = 0; g < num_groups; ++g) {
    std::vector<float>& total = sums[g];
    for (int64_t part = 1; part < parts; ++part)
      for (size_t i = 0; i < total.size(); ++i) total[i] += sums[part * num_groups + g][i];
    gather_slots(groups_[g], total.data(), values, num_threads);
    values += groups_[g].layout.kept;
  }
}

}  // namespace gossamer
