// SPDX-License-Identifier: Apache-2.0
// The specification of the row-group kernel: plain loops over the layout, no intrinsics.
#include "gossamer/row_groups.hpp"

#include "reference/activation.hpp"

namespace gossamer::reference {
namespace {

void row_groups(const RowGroupsView& view, const LinearCall& call, TokenTile tile, int64_t first_tile,
                int64_t last_tile, float* scratch) {
  for (int64_t t = 0; t < tile.num_tokens; ++t) {
    const float* x = call.x + (tile.first + t) * call.x_stride;
    float* y = call.y + (tile.first + t) * call.y_stride;
    for (int64_t part = first_tile; part < last_tile; ++part) {
      const int64_t row0 = view.tile_rows[part], num_rows = view.tile_rows[part + 1] - row0;
      for (int64_t r = 0; r < num_rows + kMaxGroupKept; ++r)
        scratch[r] = call.bias && r < num_rows ? call.bias[row0 + r] : 0.0f;
      for (int64_t s = 0; s < view.num_slabs; ++s) {
        const GroupBlock& block = view.blocks[part * view.num_slabs + s];
        int64_t column = block.first_column;
        for (int64_t g = block.first_group; g < block.first_group + view.tile_groups[part]; ++g)
          for (int64_t c = 0; c < view.num_choices; ++c)
            for (int64_t j = 0; j < view.counts[g * view.num_choices + c]; ++j, ++column) {
              const float v = x[s * view.slab_columns + view.offsets[column] / kOffsetUnit];
              for (int64_t i = 0; i < view.num_kept; ++i)
                scratch[view.first_rows[g] + view.choices[c * view.num_kept + i]] +=
                    view.values[column * view.num_kept + i] * v;
            }
      }
      for (int64_t r = 0; r < num_rows; ++r) y[row0 + r] = activate(scratch[r], call.activation);
    }
  }
}

volatile float sink;

double mix(int64_t repeats) {
  static float slab[96];
  float sums[kMaxGroupKept] = {};
  for (int64_t i = 0; i < repeats; ++i)
    for (float& sum : sums) sum += 0.5f * slab[i * 37 % 96];
  for (float sum : sums) sink = sum;
  return 2.0 * kMaxGroupKept * static_cast<double>(repeats);
}

const int max_vectors[] = {1, 1, 1};

}  // namespace

const RowGroupsKernels row_groups_kernels = {row_groups, 1, max_vectors, mix};

}  // namespace gossamer::reference
