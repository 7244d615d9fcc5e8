// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gossamer/conv_layout.hpp"
#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// Accumulators of all rows that share a gathered slab: 256 KiB, half of L2.
constexpr int64_t kMaxAccumulators = 65536;

}  // namespace

int64_t PackedConv::tiles_together() const {
  const PanelLayout& layout = groups_[0].layout;
  const int64_t fitting = kMaxAccumulators / std::max<int64_t>(layout.tile_rows * max_width_, 1);
  return std::min(std::max<int64_t>(fitting, 1), layout.num_tiles);
}

void PackedConv::run(const float* x, int64_t images, float* y, const float* added, const float* bias,
                     Activation activation, int num_threads) const {
  const int64_t num_groups = given_.groups, group_rows = rows_ / num_groups;
  const std::vector<ConvTile> tiles = pixel_tiles();
  std::vector<ConvView> views;
  for (int64_t g = 0; g < num_groups; ++g) views.push_back(view(g));
  const int64_t x_size = geometry_.channels * geometry_.height * geometry_.width;
  const int64_t y_size = group_rows * geometry_.out_h() * geometry_.out_w();
  num_threads = usable_threads(num_threads);
  // Pixel tiles share nothing; row tiles of one pixel tile each gather the slab again.
  const int64_t row_tiles = groups_[0].layout.num_tiles;
  const int64_t num_pixel_tiles = images * num_groups * static_cast<int64_t>(tiles.size());
  const bool is_even = num_pixel_tiles % num_threads == 0 || num_pixel_tiles >= 4 * num_threads;
  const int64_t together = is_even ? tiles_together() : 1;
  const int64_t splits = (row_tiles + together - 1) / together;
  const int64_t num_tasks = num_pixel_tiles * splits;
  run_tasks(num_tasks, num_threads, [&](int64_t i) {
    const int64_t part = i % splits, pixels = i / splits % static_cast<int64_t>(tiles.size());
    const int64_t image_group = i / splits / static_cast<int64_t>(tiles.size());
    const int64_t group = image_group % num_groups;
    ConvTile tile = tiles[pixels];
    tile.first_tile = part * together;
    tile.last_tile = std::min(tile.first_tile + together, row_tiles);
    float* scratch =
        static_cast<float*>(thread_scratch(conv_scratch_floats(views[group], tile) * sizeof(float)));
    if (!scratch) return false;
    const ConvImage image = {x + image_group * x_size, x, x + images * num_groups * x_size};
    const ConvCall call = {image, y + image_group * y_size, added ? added + image_group * y_size : nullptr,
                           bias ? bias + group * group_rows : nullptr, activation};
    kernels_.run(views[group], call, tile, scratch);
    return true;
  });
}

}  // namespace gossamer
