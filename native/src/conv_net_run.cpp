// SPDX-License-Identifier: Apache-2.0
// Groups of images through all steps of a network; tiles of a step are tasks, or groups are where there are enough.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "gossamer/conv_net_model.hpp"
#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

constexpr int64_t W = kTileTokens;
// Products below which threads would wait for each other longer than they work.
constexpr int64_t kMinShared = int64_t{1} << 20;
constexpr int64_t kZeroLanes = W + 2 * kLaneSlack;  // a row of zeros and what may be read around it

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

int64_t rounded(int64_t elements) { return (elements + W - 1) / W * W; }

}  // namespace

// Images that are run together, and where their values lie.
template <class T>
struct ConvNet::Group {
  static constexpr bool kBytes = std::is_same_v<T, uint8_t>;

  const ConvNet& net;
  const ConvNetKernels& kernels;
  const LaneKernels<T>& lanes;
  int64_t images;
  int threads;
  T* memory;

  T* value(int64_t v) const {
    T* at = memory + kLaneSlack;
    for (int64_t slot = 0; slot < net.slots_[v]; ++slot) at += slot_size(slot);
    return at;
  }
  int64_t slot_size(int64_t slot) const { return rounded(net.slot_elements_[slot] * images + kLaneSlack); }
  T* tile(int64_t v, int64_t t) const { return value(v) + t * net.values_[v].channels * W; }
  int64_t tiles(int64_t v) const { return net.shape_of(v).tiles(images); }
  const uint32_t* mask(int64_t v, int64_t t) const { return net.masks_[net.values_[v].shape].data() + t * W; }
  T zero(int64_t v) const { return static_cast<T>(kBytes ? net.values_[v].zero : 0); }
  ByteCode code(int64_t v) const {
    const NetValue& value = net.values_[v];
    return {1.0f / value.scale, value.zero, (1 << net.bits_) - 1};
  }

  void read(const float* x) const;
  void write(float* y) const;
  void write_means(float* y) const;
  void conv(const Step& step) const;
  void phases(const Step& step) const;
  void largest(const Step& step) const;
  bool conv_tile(const Step& step, int64_t t, int64_t first_part, int64_t last_part) const;
  static size_t table_bytes(const NetConv& conv);
  ShiftedLanes<T>* positions(const NetConv& conv, int64_t t, char* scratch) const;
  void gather(const NetConv& conv, const ShiftedLanes<T>* table, int64_t first, int64_t num, T* panel,
              ShiftedLanes<T>* moved) const;
  AddedRows<T> added(const NetConv& conv, int64_t t, int64_t first, int64_t last) const;
  template <class Row>
  void each_row(int64_t v, const Row& row) const;
};

// row(image, image row, first lane)
template <class T>
template <class Row>
void ConvNet::Group<T>::each_row(int64_t v, const Row& row) const {
  const LaneShape& shape = net.shape_of(v);
  for (int64_t image = 0; image < images; ++image)
    for (int64_t r = 0; r < shape.height; ++r) row(image, r, image * shape.image_lanes() + r * shape.pitch());
}

// A channel as one string of lanes, and back into tiles: rows of images do not end where tiles do.
template <class T>
void ConvNet::Group<T>::read(const float* x) const {
  const LaneShape& shape = net.shape_of(0);
  const int64_t channels = net.values_[0].channels, num = tiles(0), pixels = shape.height * shape.width;
  run_tasks(channels, 4 * channels * num * W < kMinShared ? 1 : threads, [&](int64_t c) {
    auto* lane = static_cast<float*>(thread_scratch(static_cast<size_t>(num * W) * (sizeof(float) + 1)));
    if (!lane) return false;
    std::fill_n(lane, num * W, 0.0f);
    each_row(0, [&](int64_t image, int64_t r, int64_t first) {
      std::copy_n(x + (image * channels + c) * pixels + r * shape.width, shape.width, lane + first);
    });
    const T* from;
    if constexpr (kBytes) {
      auto* bytes = reinterpret_cast<uint8_t*>(lane + num * W);
      kernels.to_bytes(lane, num * W, code(0), bytes);
      from = bytes;
    } else {
      from = lane;
    }
    for (int64_t t = 0; t < num; ++t) std::copy_n(from + t * W, W, tile(0, t) + c * W);
    return true;
  });
}

template <class T>
void ConvNet::Group<T>::write(float* y) const {
  const int64_t v = net.result_, channels = net.values_[v].channels;
  const LaneShape& shape = net.shape_of(v);
  const float scale = kBytes ? net.values_[v].scale : 1.0f;
  const int zero_code = kBytes ? net.values_[v].zero : 0;
  run_tasks(channels, threads, [&](int64_t c) {
    each_row(v, [&](int64_t image, int64_t r, int64_t first) {
      float* to = y + ((image * channels + c) * shape.height + r) * shape.width;
      for (int64_t i = 0; i < shape.width; ++i) {
        const T code = tile(v, (first + i) / W)[c * W + (first + i) % W];
        to[i] = kBytes ? static_cast<float>(code - zero_code) * scale : static_cast<float>(code);
      }
    });
    return true;
  });
}

// Pixel after pixel, wherever tiles end: an image gives the same bits in every group.
template <class T>
void ConvNet::Group<T>::write_means(float* y) const {
  const int64_t v = net.result_, channels = net.values_[v].channels;
  const LaneShape& shape = net.shape_of(v);
  const float factor = (kBytes ? net.values_[v].scale : 1.0f) / static_cast<float>(shape.height * shape.width);
  std::fill_n(y, images * channels, 0.0f);
  each_row(v, [&](int64_t image, int64_t, int64_t first) {
    float* sums = y + image * channels;
    for (int64_t lane = first; lane < first + shape.width; ++lane) {
      const T* from = tile(v, lane / W) + lane % W;
      for (int64_t c = 0; c < channels; ++c) sums[c] += static_cast<float>(from[c * W] - zero(v));
    }
  });
  for (int64_t i = 0; i < images * channels; ++i) y[i] *= factor;
}

// Whether the kernel sees a tile as it lies there.
bool ConvNet::is_pointwise(const NetConv& conv) {
  const NetPosition& at = conv.positions[0];
  return conv.phases == 1 && conv.positions.size() == 1 && at.rows == 0 && at.columns == 0;
}

// Where the kernel's positions find the lanes of a tile; the row of zeros stands in front of the table.
template <class T>
ShiftedLanes<T>* ConvNet::Group<T>::positions(const NetConv& conv, int64_t t, char* scratch) const {
  T* zeros = reinterpret_cast<T*>(scratch);
  std::fill_n(zeros, kZeroLanes, zero(conv.from));
  auto* table = reinterpret_cast<ShiftedLanes<T>*>(zeros + kZeroLanes);
  const int64_t num = tiles(conv.from), pitch = net.shape_of(conv.from).pitch();
  const int64_t tile_size = net.values_[conv.from].channels * W;
  const T* const in = value(conv.from);
  for (size_t p = 0; p < conv.positions.size(); ++p) {
    const NetPosition& at = conv.positions[p];
    const int64_t lane = t * W + at.rows * pitch + at.columns, first = floor_div(lane, W);
    const auto exists = [&](int64_t i) { return i >= 0 && i < num; };
    const auto row = [&](int64_t i) { return exists(i) ? in + i * tile_size + at.phase * W : zeros + kLaneSlack; };
    const auto step = [&](int64_t i) { return exists(i) ? conv.phases * W : 0; };
    table[p] = {row(first), row(first + 1), step(first), step(first + 1), static_cast<int>(lane - first * W)};
  }
  return table;
}

template <class T>
size_t ConvNet::Group<T>::table_bytes(const NetConv& conv) {
  return (kZeroLanes * sizeof(T) + conv.positions.size() * sizeof(ShiftedLanes<T>) + 63) / 64 * 64;
}

// The lanes of channels first..first + num beneath each other.
template <class T>
void ConvNet::Group<T>::gather(const NetConv& conv, const ShiftedLanes<T>* table, int64_t first, int64_t num, T* panel,
                               ShiftedLanes<T>* moved) const {
  for (size_t p = 0; p < conv.positions.size(); ++p) {
    moved[p] = table[p];
    moved[p].first += first * table[p].first_step;
    moved[p].second += first * table[p].second_step;
  }
  lanes.gather(moved, static_cast<int64_t>(conv.positions.size()), num, panel);
}

// The part of a value that is added to rows first..last.
template <class T>
AddedRows<T> ConvNet::Group<T>::added(const NetConv& conv, int64_t t, int64_t first, int64_t last) const {
  if (conv.added < 0) return {nullptr, 0, 0, 1.0f, 0};
  const NetValue& other = net.values_[conv.added];
  const int64_t from = std::max(conv.added_first, first), to = std::min(conv.added_first + other.channels, last);
  if (from >= to) return {nullptr, 0, 0, 1.0f, 0};
  return {tile(conv.added, t) + (from - conv.added_first) * W, from - first, to - from, other.scale, other.zero};
}

// fp32: block after block of columns is gathered into L1 and multiplied by all rows.
template <>
bool ConvNet::Group<float>::conv_tile(const Step& step, int64_t t, int64_t first_part, int64_t last_part) const {
  const NetConv& conv = step.conv;
  const PanelView view = step.panel.view();
  const auto num_positions = static_cast<int64_t>(conv.positions.size());
  const int64_t channels = net.values_[conv.from].channels / conv.phases, block_channels = view.block_columns / num_positions;
  const int64_t tokens = std::min(W, net.shape_of(conv.to).lanes(images) - t * W);
  const bool as_it_lies = is_pointwise(conv);
  const size_t table = table_bytes(conv), slab_bytes = static_cast<size_t>(view.block_columns * W) * sizeof(float);
  auto* scratch = as_it_lies ? nullptr : static_cast<char*>(thread_scratch(2 * table + slab_bytes));
  if (!as_it_lies && !scratch) return false;
  const ShiftedLanes<float>* from = as_it_lies ? nullptr : positions(conv, t, scratch);
  auto* moved = reinterpret_cast<ShiftedLanes<float>*>(scratch + table);
  auto* slab = reinterpret_cast<float*>(scratch + 2 * table);
  float* out = tile(conv.to, t);
  for (int64_t b = 0; b < view.num_blocks; ++b) {
    const int64_t first = b * block_channels;
    if (!as_it_lies) gather(conv, from, first, std::min(block_channels, channels - first), slab, moved);
    const float* in = as_it_lies ? tile(conv.from, t) + first * W : slab;
    for (int64_t part = first_part; part < last_part; ++part)
      encoder_kernels(net.isa_).block(view, part, b, in, out, step.bias.data(), tokens);
  }
  const int64_t first = first_part * view.tile_rows, last = std::min(last_part * view.tile_rows, view.rows);
  kernels.finish(out + first * W, last - first, added(conv, t, first, last), conv.relu, mask(conv.to, t));
  return true;
}

// Bytes: a whole panel of them is small. Sums of a row tile become bytes while they are in L2.
template <>
bool ConvNet::Group<uint8_t>::conv_tile(const Step& step, int64_t t, int64_t first_part, int64_t last_part) const {
  const NetConv& conv = step.conv;
  const Int8View view = step.quads.view();
  const int64_t channels = net.values_[conv.from].channels / conv.phases;
  const int64_t tokens = std::min(W, net.shape_of(conv.to).lanes(images) - t * W);
  const size_t sum_bytes = static_cast<size_t>(view.tile_rows * W) * sizeof(float), table = table_bytes(conv);
  const bool as_it_lies = is_pointwise(conv);
  auto* scratch = static_cast<char*>(
      thread_scratch(sum_bytes + 2 * table + (as_it_lies ? 0 : static_cast<size_t>(view.columns * W))));
  if (!scratch) return false;
  auto* sums = reinterpret_cast<float*>(scratch);
  auto* panel = reinterpret_cast<uint8_t*>(scratch + sum_bytes + 2 * table);
  if (!as_it_lies)
    gather(conv, positions(conv, t, scratch + sum_bytes), 0, channels, panel,
           reinterpret_cast<ShiftedLanes<uint8_t>*>(scratch + sum_bytes + table));
  const uint8_t* in = as_it_lies ? tile(conv.from, t) : panel;
  alignas(64) float scales[W];
  std::fill_n(scales, W, net.values_[conv.from].scale);
  for (int64_t part = first_part; part < last_part; ++part) {
    const int64_t first = part * view.tile_rows, num = rows_of_tile(view, part);
    // The kernel writes where the rows of this part are in a whole tile.
    encoder_int8_kernels(net.isa_).linear(view, part, in, scales, sums - first * W, step.bias.data(), Activation::none,
                                          tokens);
    kernels.finish_bytes(sums, num, added(conv, t, first, first + num), conv.relu, mask(conv.to, t), code(conv.to),
                         tile(conv.to, t) + first * W);
  }
  return true;
}

template <class T>
void ConvNet::Group<T>::conv(const Step& step) const {
  const int64_t products = (kBytes ? step.quads.kept : step.panel.kept) * tiles(step.conv.to) * W;
  run_tiles(tiles(step.conv.to), kBytes ? step.quads.num_tiles : step.panel.num_tiles,
            products < kMinShared ? 1 : threads,
            [&](int64_t t, int64_t first, int64_t last) { return conv_tile(step, t, first, last); });
}

template <class T>
void ConvNet::Group<T>::largest(const Step& step) const {
  const NetConv& window = step.conv;
  const auto num_positions = static_cast<int64_t>(window.positions.size());
  const int64_t channels = net.values_[window.to].channels;
  const size_t table = table_bytes(window);
  run_tasks(tiles(window.to), threads, [&](int64_t t) {
    auto* scratch =
        static_cast<char*>(thread_scratch(table + static_cast<size_t>(channels * num_positions * W) * sizeof(T)));
    if (!scratch) return false;
    T* panel = reinterpret_cast<T*>(scratch + table);
    lanes.gather(positions(window, t, scratch), num_positions, channels, panel);
    lanes.largest(panel, num_positions, channels, mask(window.to, t), zero(window.to), tile(window.to, t));
    return true;
  });
}

template <class T>
void ConvNet::Group<T>::phases(const Step& step) const {
  const int64_t from = step.conv.from, to = step.conv.to;
  const LaneShape &large = net.shape_of(from), &small = net.shape_of(to);
  const auto num_phases = static_cast<int64_t>(step.phases.size());
  const int64_t from_lanes = tiles(from) * W, to_lanes = tiles(to) * W;
  const int64_t elements = net.values_[from].channels * from_lanes;
  run_tasks(net.values_[from].channels, 4 * elements < kMinShared ? 1 : threads, [&](int64_t c) {
    auto* whole =
        static_cast<T*>(thread_scratch(static_cast<size_t>(from_lanes + to_lanes + 2 * kLaneSlack) * sizeof(T)));
    if (!whole) return false;
    T* part = whole + from_lanes + kLaneSlack;
    for (int64_t t = 0; t < tiles(from); ++t) std::copy_n(tile(from, t) + c * W, W, whole + t * W);
    for (int64_t p = 0; p < num_phases; ++p) {
      const NetPhase& phase = step.phases[p];
      // The last phase of an odd size has a row or a column less.
      const int64_t rows = (large.height - phase.row + 1) / 2, width = (large.width - phase.column + 1) / 2;
      for (int64_t image = 0; image < images; ++image) {
        T* into = part + image * small.image_lanes();
        lanes.phase(whole + image * large.image_lanes() + phase.row * large.pitch() + phase.column, 2 * large.pitch(), rows,
                    width, small.pitch(), zero(to), into);
        // Up to the next image, or to the end of the last tile.
        T* const end = image + 1 < images ? into + small.image_lanes() : part + to_lanes;
        std::fill(into + rows * small.pitch(), end, zero(to));
      }
      for (int64_t t = 0; t < tiles(to); ++t) std::copy_n(part + t * W, W, tile(to, t) + (c * num_phases + p) * W);
    }
    return true;
  });
}

template <class T>
void ConvNet::run_groups(const float* x, int64_t images, float* y, int num_threads) const {
  // As many groups as fit the cache, evenly filled, and evenly shared by the threads.
  int64_t groups = (images + images_together_ - 1) / images_together_;
  if (images >= num_threads) groups = (groups + num_threads - 1) / num_threads * num_threads;
  const bool apart = groups >= num_threads;
  const ConvNetKernels& kernels = conv_net_kernels(isa_);
  run_tasks(groups, apart ? num_threads : 1, [&](int64_t g) {
    const int64_t first = images * g / groups, num = images * (g + 1) / groups - first;
    const LaneKernels<T>* lanes;
    if constexpr (std::is_same_v<T, uint8_t>)
      lanes = &kernels.bytes;
    else
      lanes = &kernels.floats;
    Group<T> group = {*this, kernels, *lanes, num, apart ? 1 : num_threads, nullptr};
    int64_t elements = kLaneSlack;
    for (size_t slot = 0; slot < slot_elements_.size(); ++slot) elements += group.slot_size(static_cast<int64_t>(slot));
    group.memory = static_cast<T*>(thread_scratch(static_cast<size_t>(elements) * sizeof(T), Scratch::images));
    if (!group.memory) return false;
    group.read(x + first * input_size());
    for (const Step& step : steps_) {
      if (step.kind == Step::Kind::conv) group.conv(step);
      if (step.kind == Step::Kind::phases) group.phases(step);
      if (step.kind == Step::Kind::largest) group.largest(step);
    }
    float* into = y + first * result_size();
    mean_ ? group.write_means(into) : group.write(into);
    return true;
  });
}

void ConvNet::run(const float* x, int64_t images, float* y, int num_threads) const {
  num_threads = usable_threads(num_threads);
  if (!int8_) return in_planes_ ? run_planes<float>(x, images, y, num_threads) : run_groups<float>(x, images, y, num_threads);
  in_planes_ ? run_planes<int16_t>(x, images, y, num_threads) : run_groups<uint8_t>(x, images, y, num_threads);
  // Codes have no NaN: an image that held one must show it.
  for (int64_t image = 0; image < images; ++image) {
    const int64_t size = input_size();
    const float* pixels = x + image * size;
    uint32_t worst = 0;
    for (int64_t i = 0; i < size; ++i) {
      uint32_t bits;
      std::memcpy(&bits, pixels + i, sizeof bits);
      worst |= (bits & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    }
    if (worst)
      std::fill_n(y + image * result_size(), result_size(), std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace gossamer
