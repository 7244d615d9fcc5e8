// SPDX-License-Identifier: Apache-2.0
#include "gossamer/fresh_panel.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "gossamer/fork.hpp"

namespace gossamer {
namespace {

// As in pack_panel: 512 rows of accumulators stay in L2.
constexpr int64_t kMaxTileRows = 512;
constexpr int64_t kMaxBlockColumns = 256;

// Of every byte value: how many bits are set and which, and the eight bits as numbers. A walk over
// set bits would mispredict its end in every word; looking bytes up never does.
struct ByteTable {
  std::array<uint8_t, 256> count{};
  std::array<std::array<uint16_t, 8>, 256> position{}, bit{};

  ByteTable() {
    for (int byte = 0; byte < 256; ++byte)
      for (int i = 0; i < 8; ++i) {
        bit[byte][i] = byte >> i & 1;
        if (bit[byte][i]) position[byte][count[byte]++] = static_cast<uint16_t>(i);
      }
  }
};
const ByteTable bytes_table;

// The kept columns of a block of one row. `columns` has room for 8 more than there are.
int decode(const uint8_t* bits, int64_t num_bytes, uint16_t* columns) {
  int kept = 0;
  for (int64_t i = 0; i < num_bytes; ++i) {
    const auto& position = bytes_table.position[bits[i]];
    for (int b = 0; b < 8; ++b) columns[kept + b] = static_cast<uint16_t>(position[b] + 8 * i);
    kept += bytes_table.count[bits[i]];
  }
  return kept;
}

// Bytes [first, last) of the packed columns of a block. Blocks are whole bytes wide.
struct ByteRange {
  int64_t first, last;
};

ByteRange bytes_of_block(const KeptWeight& weight, int64_t block, int64_t block_columns) {
  const int64_t first = block * block_columns / 8;
  return {first, std::min(first + block_columns / 8, weight.mask_stride())};
}

template <class Body>
void in_parallel(int64_t count, int num_threads, Body body) {
  num_threads = usable_threads(num_threads);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && count > 1)
  for (int64_t i = 0; i < count; ++i) body(i);
}

int64_t count_kept(const KeptWeight& weight) {
  int64_t kept = 0;
  for (int64_t i = 0; i < weight.rows * weight.mask_stride(); ++i)
    kept += bytes_table.count[weight.mask_bits[i]];
  return kept;
}

// The cut of a [rows][columns] matrix, as pack_panel makes it.
PanelLayout cut(int64_t rows, int64_t columns, int64_t kept, const PanelShape* shapes) {
  PanelLayout layout;
  layout.rows = rows;
  layout.columns = columns;
  layout.kept = kept;
  const double numel = double(rows) * double(columns);
  const double density = numel > 0 ? double(kept) / numel : 0.0;
  while (density < shapes->min_density) ++shapes;
  layout.group_rows = shapes->group_rows;
  layout.block_columns = shapes->block_columns;
  layout.num_blocks = (columns + layout.block_columns - 1) / layout.block_columns;
  layout.num_tiles = std::max<int64_t>((rows + kMaxTileRows - 1) / kMaxTileRows, rows >= 128 ? 2 : 1);
  layout.tile_rows = (rows + layout.num_tiles - 1) / layout.num_tiles;
  layout.tile_rows = std::max<int64_t>((layout.tile_rows + 15) / 16 * 16, 16);
  layout.num_tiles = (rows + layout.tile_rows - 1) / layout.tile_rows;
  return layout;
}

// Orders the rows of every block by falling count and gives each its slots. counts [num_blocks][rows].
FreshPanel place(PanelLayout layout, const std::vector<uint16_t>& counts) {
  FreshPanel panel{std::move(layout), {}};
  PanelLayout& to = panel.layout;
  panel.first_slots.resize(counts.size());
  int64_t slot = 0;
  std::vector<uint16_t> order(static_cast<size_t>(to.tile_rows + to.group_rows));
  for (int64_t tile = 0; tile < to.num_tiles; ++tile) {
    const int64_t first = tile * to.tile_rows, num = std::min(to.tile_rows, to.rows - first);
    const int64_t grouped = (num + to.group_rows - 1) / to.group_rows * to.group_rows;
    for (int64_t block = 0; block < to.num_blocks; ++block) {
      const uint16_t* count = counts.data() + block * to.rows + first;
      const auto count_of = [&](int64_t row) { return row < num ? count[row] : uint16_t{0}; };
      int64_t place_of[kMaxBlockColumns + 2] = {};  // by kMaxBlockColumns - count, then running
      for (int64_t i = 0; i < grouped; ++i) ++place_of[kMaxBlockColumns - count_of(i) + 1];
      for (int64_t i = 0; i < kMaxBlockColumns; ++i) place_of[i + 1] += place_of[i];
      for (int64_t i = 0; i < grouped; ++i)
        order[place_of[kMaxBlockColumns - count_of(i)]++] = static_cast<uint16_t>(i);
      to.blocks.push_back({static_cast<int64_t>(to.row_ids.size()), slot, grouped});
      for (int64_t i = 0; i < grouped; i += to.group_rows) {
        for (int64_t g = 0; g < to.group_rows; ++g) {
          const uint16_t id = order[i + g];
          to.row_ids.push_back(id);
          to.row_counts.push_back(count_of(id));
          if (id < num) panel.first_slots[block * to.rows + first + id] = slot + g;
        }
        slot += count_of(order[i]) * to.group_rows;
      }
    }
  }
  for (int64_t g = 0; g < to.group_rows; ++g) to.row_ids.push_back(0);
  to.offsets.resize(slot, 0);
  return panel;
}

// The kept weights of each (block, row), and where the values of each row begin.
struct RowCounts {
  std::vector<uint16_t> of_block;  // [num_blocks][rows]
  std::vector<int64_t> row_start;  // [rows + 1]
};

RowCounts count_rows(const KeptWeight& weight, const PanelLayout& layout) {
  RowCounts counts;
  counts.of_block.resize(layout.num_blocks * weight.rows);
  counts.row_start.assign(weight.rows + 1, 0);
  for (int64_t r = 0; r < weight.rows; ++r) {
    const uint8_t* bits = weight.mask_bits + r * weight.mask_stride();
    int64_t sum = 0;
    for (int64_t b = 0; b < layout.num_blocks; ++b) {
      const ByteRange range = bytes_of_block(weight, b, layout.block_columns);
      int kept = 0;
      for (int64_t i = range.first; i < range.last; ++i) kept += bytes_table.count[bits[i]];
      counts.of_block[b * weight.rows + r] = static_cast<uint16_t>(kept);
      sum += kept;
    }
    counts.row_start[r + 1] = counts.row_start[r] + sum;
  }
  return counts;
}

std::vector<int64_t> row_starts(const KeptWeight& weight) {
  std::vector<int64_t> start(static_cast<size_t>(weight.rows) + 1, 0);
  for (int64_t r = 0; r < weight.rows; ++r)
    start[r + 1] = start[r] + count_kept({nullptr, weight.mask_bits + r * weight.mask_stride(), 1, weight.columns});
  return start;
}

}  // namespace

FreshPanel fresh_panel(const KeptWeight& weight, const PanelShape* shapes, int num_threads) {
  PanelLayout layout = cut(weight.rows, weight.columns, count_kept(weight), shapes);
  const RowCounts counts = count_rows(weight, layout);
  FreshPanel panel = place(std::move(layout), counts.of_block);
  PanelLayout& to = panel.layout;
  if (weight.values) to.values.resize(to.offsets.size(), 0.0f);
  in_parallel(weight.rows, num_threads, [&](int64_t r) {
    uint16_t columns[kMaxBlockColumns + 8];
    const uint8_t* bits = weight.mask_bits + r * weight.mask_stride();
    const float* value = weight.values ? weight.values + counts.row_start[r] : nullptr;
    for (int64_t b = 0; b < to.num_blocks; ++b) {
      const ByteRange range = bytes_of_block(weight, b, to.block_columns);
      const int kept = decode(bits + range.first, range.last - range.first, columns);
      const int64_t slot = panel.first_slot(b, r), step = to.group_rows;
      for (int j = 0; j < kept; ++j)
        to.offsets[slot + j * step] = static_cast<uint16_t>(columns[j] * kOffsetUnit);
      if (!value) continue;
      for (int j = 0; j < kept; ++j) to.values[slot + j * step] = value[j];
      value += kept;
    }
  });
  return panel;
}

FreshPanel fresh_transposed_panel(const KeptWeight& weight, const PanelShape* shapes, int num_threads) {
  const std::vector<int64_t> row_start = row_starts(weight);
  PanelLayout layout = cut(weight.columns, weight.rows, row_start[weight.rows], shapes);
  const int64_t stride = weight.mask_stride(), block_rows = layout.block_columns;
  const auto last_row = [&](int64_t block) { return std::min((block + 1) * block_rows, weight.rows); };

  std::vector<uint16_t> counts(layout.num_blocks * weight.columns);
  in_parallel(layout.num_blocks, num_threads, [&](int64_t b) {
    std::vector<uint16_t> padded(stride * 8, 0);
    for (int64_t r = b * block_rows; r < last_row(b); ++r)
      for (int64_t i = 0; i < stride; ++i)
        for (int k = 0; k < 8; ++k) padded[i * 8 + k] += bytes_table.bit[weight.mask_bits[r * stride + i]][k];
    std::copy_n(padded.begin(), weight.columns, counts.begin() + b * weight.columns);
  });
  FreshPanel panel = place(std::move(layout), counts);
  PanelLayout& to = panel.layout;
  to.values.resize(to.offsets.size(), 0.0f);
  in_parallel(to.num_blocks, num_threads, [&](int64_t b) {
    const auto starts = panel.first_slots.begin() + b * weight.columns;
    std::vector<int64_t> next(starts, starts + weight.columns);
    uint16_t columns[kMaxBlockColumns + 8];
    for (int64_t r = b * block_rows; r < last_row(b); ++r) {
      const float* value = weight.values + row_start[r];
      const uint16_t offset = static_cast<uint16_t>((r - b * block_rows) * kOffsetUnit);
      for (int64_t i = 0; i < stride; i += kMaxBlockColumns / 8) {
        const int64_t num_bytes = std::min(kMaxBlockColumns / 8, stride - i);
        const int kept = decode(weight.mask_bits + r * stride + i, num_bytes, columns);
        for (int j = 0; j < kept; ++j) {
          int64_t& slot = next[i * 8 + columns[j]];
          to.values[slot] = *value++;
          to.offsets[slot] = offset;
          slot += to.group_rows;
        }
      }
    }
  });
  return panel;
}

void gather_slots(const FreshPanel& panel, const KeptWeight& weight, const float* slots, float* values,
                  int num_threads) {
  const PanelLayout& from = panel.layout;
  const RowCounts counts = count_rows(weight, from);
  in_parallel(weight.rows, num_threads, [&](int64_t r) {
    float* value = values + counts.row_start[r];
    for (int64_t b = 0; b < from.num_blocks; ++b) {
      const float* slot = slots + panel.first_slot(b, r);
      for (int j = 0; j < counts.of_block[b * weight.rows + r]; ++j) *value++ = slot[j * from.group_rows];
    }
  });
}

}  // namespace gossamer
