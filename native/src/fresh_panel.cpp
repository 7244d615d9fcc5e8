// SPDX-License-Identifier: Apache-2.0
#include "gossamer/fresh_panel.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "in_parallel.hpp"
#include "mask_bytes.hpp"

namespace gossamer {
namespace {

constexpr int64_t kMaxBlockColumns = 256;
// Columns of a transposed layout are met this many bytes of mask at a time, so that what they touch stays in L1.
constexpr int64_t kChunkBytes = 32;

// Bytes [first, last) of the packed columns of a block. Blocks are whole bytes wide.
struct ByteRange {
  int64_t first, last;
};

ByteRange bytes_of_block(const KeptWeight& weight, int64_t block, int64_t block_columns) {
  const int64_t first = block * block_columns / 8;
  return {first, std::min(first + block_columns / 8, weight.mask_stride())};
}

// Calls visit(row, block, first slot, kept, first value) for every row of every block. Rows come in
// the order of their counts: loops over a row's weights then predict their end, as in the kernels,
// which makes a pass twice as fast.
template <class Visit>
void each_row_of_block(const FreshPanel& panel, int num_threads, Visit visit) {
  const PanelLayout& layout = panel.layout;
  in_parallel(layout.num_tiles, num_threads, [&](int64_t tile) {
    const int64_t first = tile * layout.tile_rows, num = std::min(layout.tile_rows, layout.rows - first);
    int64_t value[kMaxTileRows];
    std::copy_n(panel.row_start.begin() + first, num, value);
    for (int64_t b = 0; b < layout.num_blocks; ++b) {
      const uint16_t* ids = layout.row_ids.data() + layout.blocks[tile * layout.num_blocks + b].first_row;
      for (int64_t i = 0; i < num; ++i) {
        const int64_t at = b * layout.rows + first + ids[i];
        const int kept = panel.counts[at];
        if (kept == 0) break;
        visit(first + ids[i], b, panel.first_slots[at], kept, value[ids[i]]);
        value[ids[i]] += kept;
      }
    }
  });
}

// The kept weights of each (block, row).
std::vector<uint16_t> count_rows(const KeptWeight& weight, const PanelLayout& layout, int num_threads) {
  std::vector<uint16_t> counts(layout.num_blocks * weight.rows);
  in_parallel(layout.num_tiles, num_threads, [&](int64_t tile) {
    const int64_t first = tile * layout.tile_rows, last = std::min(first + layout.tile_rows, layout.rows);
    for (int64_t r = first; r < last; ++r)
      for (int64_t b = 0; b < layout.num_blocks; ++b) {
        const ByteRange range = bytes_of_block(weight, b, layout.block_columns);
        const uint8_t* bits = weight.mask_bits + r * weight.mask_stride();
        counts[b * weight.rows + r] = static_cast<uint16_t>(count_bits(bits + range.first, range.last - range.first));
      }
  });
  return counts;
}

// The kept weights of each column inside blocks of rows, [num_blocks][columns].
std::vector<uint16_t> count_columns(const KeptWeight& weight, int64_t num_blocks, int64_t block_rows,
                                    int num_threads) {
  const int64_t stride = weight.mask_stride();
  std::vector<uint16_t> counts(num_blocks * weight.columns);
  in_parallel(num_blocks, num_threads, [&](int64_t b) {
    const int64_t last_row = std::min((b + 1) * block_rows, weight.rows);
    for (int64_t i = 0; i < stride; i += kChunkBytes) {
      const int64_t num_bytes = std::min(kChunkBytes, stride - i);
      Octet sums[kChunkBytes] = {};
      for (int64_t r = b * block_rows; r < last_row; ++r)
        for (int64_t j = 0; j < num_bytes; ++j) sums[j] += table.bit[weight.mask_bits[r * stride + i + j]];
      std::memcpy(counts.data() + b * weight.columns + i * 8, sums,
                  std::min(num_bytes * 8, weight.columns - i * 8) * sizeof(uint16_t));
    }
  });
  return counts;
}

}  // namespace

FreshPanel place_rows(PanelLayout layout, std::vector<uint16_t> counts) {
  FreshPanel panel{std::move(layout), {}, std::move(counts), {}};
  PanelLayout& to = panel.layout;
  panel.first_slots.resize(panel.counts.size());
  const int64_t group = to.group_rows;
  // Only the last tile can be short of a whole group.
  const int64_t listed = to.num_tiles ? (to.rows + group - 1) / group * group : 0;
  to.row_ids.assign(listed * to.num_blocks + group, 0);
  to.row_counts.resize(listed * to.num_blocks);
  to.blocks.reserve(to.num_tiles * to.num_blocks);
  int64_t slot = 0, at = 0;
  const int64_t most = to.block_columns;
  std::vector<int64_t> next(most + 2);  // by most - count
  for (int64_t tile = 0; tile < to.num_tiles; ++tile) {
    const int64_t first = tile * to.tile_rows, num = std::min(to.tile_rows, to.rows - first);
    const int64_t grouped = (num + group - 1) / group * group;
    for (int64_t block = 0; block < to.num_blocks; ++block) {
      const uint16_t* count = panel.counts.data() + block * to.rows + first;
      int64_t* first_slot = panel.first_slots.data() + block * to.rows + first;
      std::fill(next.begin(), next.end(), 0);
      for (int64_t i = 0; i < num; ++i) ++next[most - count[i] + 1];
      for (int64_t i = 0; i < most; ++i) next[i + 1] += next[i];
      uint16_t* ids = to.row_ids.data() + at;
      for (int64_t i = 0; i < num; ++i) ids[next[most - count[i]]++] = static_cast<uint16_t>(i);
      for (int64_t i = num; i < grouped; ++i) ids[i] = static_cast<uint16_t>(i);  // spare rows, nothing kept
      to.blocks.push_back({at, slot, grouped});
      for (int64_t i = 0; i < grouped; i += group) {
        for (int64_t g = 0; g < group && i + g < num; ++g) {
          first_slot[ids[i + g]] = slot + g;
          to.row_counts[at + i + g] = count[ids[i + g]];
        }
        slot += count[ids[i]] * group;
      }
      at += grouped;
    }
  }
  to.offsets.resize(slot, 0);
  return panel;
}

FreshPanel fresh_panel(const KeptWeight& weight, const PanelShape* shapes, int num_threads, int64_t parts) {
  std::vector<int64_t> row_start = row_starts(weight);
  PanelLayout layout = cut_panel(weight.rows, weight.columns, row_start[weight.rows], shapes, parts);
  std::vector<uint16_t> counts = count_rows(weight, layout, num_threads);
  FreshPanel panel = place_rows(std::move(layout), std::move(counts));
  panel.row_start = std::move(row_start);
  PanelLayout& to = panel.layout;
  if (weight.values) to.values.resize(to.offsets.size(), 0.0f);
  each_row_of_block(panel, num_threads, [&](int64_t row, int64_t block, int64_t slot, int kept, int64_t value) {
    uint16_t decoded[kMaxBlockColumns + 8];
    const ByteRange range = bytes_of_block(weight, block, to.block_columns);
    decode(weight.mask_bits + row * weight.mask_stride() + range.first, range.last - range.first, decoded);
    for (int j = 0; j < kept; ++j) to.offsets[slot + j * to.group_rows] = decoded[j];
    if (!weight.values) return;
    for (int j = 0; j < kept; ++j) to.values[slot + j * to.group_rows] = weight.values[value + j];
  });
  return panel;
}

FreshPanel fresh_transposed_panel(const KeptWeight& weight, const PanelShape* shapes, int num_threads) {
  const std::vector<int64_t> row_start = row_starts(weight);
  PanelLayout layout = cut_panel(weight.columns, weight.rows, row_start[weight.rows], shapes);
  const int64_t stride = weight.mask_stride(), block_rows = layout.block_columns;
  std::vector<uint16_t> counts = count_columns(weight, layout.num_blocks, block_rows, num_threads);
  FreshPanel panel = place_rows(std::move(layout), std::move(counts));
  PanelLayout& to = panel.layout;
  to.values.resize(to.offsets.size(), 0.0f);
  in_parallel(to.num_blocks, num_threads, [&](int64_t b) {
    const int64_t row0 = b * block_rows, num_rows = std::min(block_rows, weight.rows - row0);
    int64_t taken[kMaxBlockColumns];
    std::copy_n(row_start.begin() + row0, num_rows, taken);
    float* values = to.values.data();
    uint16_t* offsets = to.offsets.data();
    const int64_t step = to.group_rows;
    for (int64_t i = 0; i < stride; i += kChunkBytes) {
      const int64_t num_bytes = std::min(kChunkBytes, stride - i);
      int64_t next[kChunkBytes * 8];
      std::copy_n(panel.first_slots.begin() + b * weight.columns + i * 8,
                  std::min(num_bytes * 8, weight.columns - i * 8), next);
      for (int64_t r = 0; r < num_rows; ++r) {
        uint16_t decoded[kChunkBytes * 8 + 8];
        const int kept = decode(weight.mask_bits + (row0 + r) * stride + i, num_bytes, decoded);
        const float* value = weight.values + taken[r];
        for (int j = 0; j < kept; ++j) {
          int64_t& slot = next[decoded[j] / kOffsetUnit];
          values[slot] = value[j];
          offsets[slot] = static_cast<uint16_t>(r * kOffsetUnit);
          slot += step;
        }
        taken[r] += kept;
      }
    }
  });
  return panel;
}

void gather_slots(const FreshPanel& panel, const float* slots, float* values, int num_threads) {
  const int64_t step = panel.layout.group_rows;
  each_row_of_block(panel, num_threads, [&](int64_t, int64_t, int64_t slot, int kept, int64_t value) {
    for (int j = 0; j < kept; ++j) values[value + j] = slots[slot + j * step];
  });
}

}  // namespace gossamer
