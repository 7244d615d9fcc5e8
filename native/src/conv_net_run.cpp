// SPDX-License-Identifier: Apache-2.0
// Groups of images through all steps of a network; tiles of a step are tasks, or groups are where there are enough.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "gossamer/conv_net_model.hpp"
#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

constexpr int64_t W = kTileTokens;

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
    T* at = memory;
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
  void multiply(const Step& step, const T* in, int64_t part, int64_t t, float* scratch) const;
  const T* gathered(const NetConv& conv, int64_t t, T* panel, T* zeros) const;
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
  run_tasks(channels, threads, [&](int64_t c) {
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

// Lanes that are no pixels are zeros and add nothing.
template <class T>
void ConvNet::Group<T>::write_means(float* y) const {
  const int64_t v = net.result_, channels = net.values_[v].channels;
  const LaneShape& shape = net.shape_of(v);
  const float factor = (kBytes ? net.values_[v].scale : 1.0f) / static_cast<float>(shape.height * shape.width);
  const int64_t num_lanes = tiles(v) * W;
  for (int64_t image = 0; image < images; ++image) {
    const int64_t first = image * shape.image_lanes(), last = std::min(first + shape.height * shape.pitch(), num_lanes);
    for (int64_t c = 0; c < channels; ++c) {
      float sum = 0.0f;
      for (int64_t lane = first; lane < last;) {
        const int64_t end = std::min(last, (lane / W + 1) * W);
        const T* row = tile(v, lane / W) + c * W;
        float part = 0.0f;
        for (; lane < end; ++lane) part += static_cast<float>(row[lane % W] - zero(v));
        sum += part;
      }
      y[image * channels + c] = sum * factor;
    }
  }
}

// What the kernel's positions see from a tile, or the tile itself where that is the same.
template <class T>
const T* ConvNet::Group<T>::gathered(const NetConv& conv, int64_t t, T* panel, T* zeros) const {
  const int64_t rows = net.values_[conv.from].channels, num = tiles(conv.from), pitch = net.shape_of(conv.from).pitch();
  const auto num_positions = static_cast<int64_t>(conv.positions.size());
  if (conv.phases == 1 && num_positions == 1 && conv.positions[0].rows == 0 && conv.positions[0].columns == 0)
    return tile(conv.from, t);
  std::fill_n(zeros, 2 * W, zero(conv.from));
  auto* at = reinterpret_cast<ShiftedLanes<T>*>(zeros + 2 * W);
  for (int64_t p = 0; p < num_positions; ++p) {
    const NetPosition& position = conv.positions[p];
    const int64_t lane = t * W + position.rows * pitch + position.columns, first = floor_div(lane, W);
    const auto exists = [&](int64_t i) { return i >= 0 && i < num; };
    const auto row = [&](int64_t i) -> const T* { return exists(i) ? tile(conv.from, i) + position.phase * W : zeros; };
    const auto step = [&](int64_t i) { return exists(i) ? conv.phases * W : 0; };
    at[p] = {row(first), row(first + 1), step(first), step(first + 1), static_cast<int>(lane - first * W)};
  }
  lanes.gather(at, num_positions, rows / conv.phases, panel);
  return panel;
}

template <class T>
void ConvNet::Group<T>::multiply(const Step& step, const T* in, int64_t part, int64_t t, float* scratch) const {
  const NetConv& conv = step.conv;
  const int64_t tokens = std::min(W, net.shape_of(conv.to).lanes(images) - t * W);
  const int64_t row0 = part * (kBytes ? step.quads.tile_rows : step.panel.tile_rows);
  const int64_t tile_rows = kBytes ? rows_of_tile(step.quads.view(), part) : rows_of_tile(step.panel.view(), part);
  AddedRows<T> added = {nullptr, 0, 0, 1.0f, 0};
  if (conv.added >= 0) {
    const NetValue& other = net.values_[conv.added];
    const int64_t first = std::max(conv.added_first, row0);
    const int64_t last = std::min(conv.added_first + other.channels, row0 + tile_rows);
    if (first < last)
      added = {tile(conv.added, t) + (first - conv.added_first) * W, first - row0, last - first, other.scale, other.zero};
  }
  T* out = tile(conv.to, t) + row0 * W;
  if constexpr (kBytes) {
    alignas(64) float scales[W];
    std::fill_n(scales, W, net.values_[conv.from].scale);
    encoder_int8_kernels(net.isa_).linear(step.quads.view(), part, in, scales, scratch - row0 * W, step.bias.data(),
                                          Activation::none, tokens);
    kernels.finish_bytes(scratch, tile_rows, added, conv.relu, mask(conv.to, t), code(conv.to), out);
  } else {
    encoder_kernels(net.isa_).linear(step.panel.view(), part, in, tile(conv.to, t), step.bias.data(), Activation::none,
                                     tokens);
    kernels.finish(out, tile_rows, added, conv.relu, mask(conv.to, t));
  }
}

// Scratch: sums of a row tile (bytes only), a row of zeros and the positions, the gathered panel.
template <class T>
bool ConvNet::Group<T>::conv_tile(const Step& step, int64_t t, int64_t first_part, int64_t last_part) const {
  const NetConv& conv = step.conv;
  const auto num_positions = static_cast<int64_t>(conv.positions.size());
  const int64_t sums = kBytes ? step.quads.tile_rows * W : 0;
  const size_t table = 2 * W * sizeof(T) + num_positions * sizeof(ShiftedLanes<T>);
  const size_t ahead = (table + 63) / 64 * 64;
  const size_t panel = (net.values_[conv.from].channels / conv.phases * num_positions * W + kLaneSlack) * sizeof(T);
  auto* scratch = static_cast<char*>(thread_scratch(sums * sizeof(float) + ahead + panel));
  if (!scratch) return false;
  char* zeros = scratch + sums * sizeof(float);
  const T* in = gathered(conv, t, reinterpret_cast<T*>(zeros + ahead), reinterpret_cast<T*>(zeros));
  for (int64_t part = first_part; part < last_part; ++part)
    multiply(step, in, part, t, reinterpret_cast<float*>(scratch));
  return true;
}

template <class T>
void ConvNet::Group<T>::conv(const Step& step) const {
  run_tiles(tiles(step.conv.to), kBytes ? step.quads.num_tiles : step.panel.num_tiles, threads,
            [&](int64_t t, int64_t first, int64_t last) { return conv_tile(step, t, first, last); });
}

template <class T>
void ConvNet::Group<T>::largest(const Step& step) const {
  const NetConv& window = step.conv;
  const auto num_positions = static_cast<int64_t>(window.positions.size());
  const int64_t channels = net.values_[window.to].channels;
  const size_t table = (2 * W * sizeof(T) + num_positions * sizeof(ShiftedLanes<T>) + 63) / 64 * 64;
  run_tasks(tiles(window.to), threads, [&](int64_t t) {
    auto* zeros = static_cast<char*>(
        thread_scratch(table + static_cast<size_t>(channels * num_positions * W + kLaneSlack) * sizeof(T)));
    if (!zeros) return false;
    const T* panel = gathered(window, t, reinterpret_cast<T*>(zeros + table), reinterpret_cast<T*>(zeros));
    lanes.largest(panel, num_positions, channels, mask(window.to, t), zero(window.to), tile(window.to, t));
    return true;
  });
}

template <class T>
void ConvNet::Group<T>::phases(const Step& step) const {
  const int64_t from = step.conv.from, to = step.conv.to;
  const LaneShape& large = net.shape_of(from);
  const auto num_phases = static_cast<int64_t>(step.phases.size());
  const int64_t from_lanes = tiles(from) * W, to_lanes = tiles(to) * W;
  run_tasks(net.values_[from].channels, threads, [&](int64_t c) {
    auto* whole = static_cast<T*>(thread_scratch(static_cast<size_t>(from_lanes + to_lanes) * sizeof(T)));
    if (!whole) return false;
    T* part = whole + from_lanes;
    for (int64_t t = 0; t < tiles(from); ++t) std::copy_n(tile(from, t) + c * W, W, whole + t * W);
    for (int64_t p = 0; p < num_phases; ++p) {
      const NetPhase& phase = step.phases[p];
      std::fill_n(part, to_lanes, zero(to));
      const int64_t width = (large.width - phase.column + 1) / 2;
      each_row(to, [&](int64_t image, int64_t r, int64_t first) {
        const int64_t row = 2 * r + phase.row;
        if (row < large.height)
          lanes.every_other(whole + image * large.image_lanes() + row * large.pitch() + phase.column, width, part + first);
      });
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
    int64_t elements = 0;
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
  if (!int8_) return run_groups<float>(x, images, y, num_threads);
  run_groups<uint8_t>(x, images, y, num_threads);
  // Bytes have no NaN: an image that held one must show it.
  for (int64_t image = 0; image < images; ++image) {
    const float* pixels = x + image * input_size();
    float sum = 0.0f;
    for (int64_t i = 0; i < input_size(); ++i) sum += pixels[i] * 0.0f;
    if (sum != 0.0f || std::isnan(sum))
      std::fill_n(y + image * result_size(), result_size(), std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace gossamer
