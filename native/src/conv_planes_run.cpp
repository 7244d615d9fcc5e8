// SPDX-License-Identifier: Apache-2.0
// Images one by one through all steps of a network on planes; threads take images, or the tiles of a step.
#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "gossamer/conv_net_model.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// Products below which threads would wait for each other longer than they work.
constexpr int64_t kMinShared = int64_t{1} << 20;

template <class T>
const PlaneKernels<T>& plane_kernels() {
#ifdef GOSSAMER_X86
  if constexpr (std::is_same_v<T, float>)
    return avx2::float_planes;
  else
    return avx2::fixed_planes;
#else
  throw std::invalid_argument("conv net: planes need AVX2");
#endif
}

}  // namespace

// One image and where its values lie.
template <class T>
struct ConvNet::PlaneRun {
  static constexpr bool kFixed = std::is_same_v<T, int16_t>;
  static constexpr int64_t kLanes = kPlaneVectorBytes / sizeof(T);

  const ConvNet& net;
  const PlaneKernels<T>& kernels;
  int threads;
  T* memory;

  static int64_t slot_size(int64_t elements) { return (elements + 31) / 32 * 32; }
  T* value(int64_t v) const {
    T* at = memory;
    for (int64_t slot = 0; slot < net.slots_[v]; ++slot) at += slot_size(net.slot_elements_[slot]);
    return at + net.shape_of(v).front();
  }
  const T* mask(int64_t v) const {
    const int64_t shape = net.values_[v].shape;
    if constexpr (kFixed)
      return net.fixed_masks_[shape].data();
    else
      return reinterpret_cast<const float*>(net.masks_[shape].data());
  }
  int64_t vectors(int64_t v) const { return (net.shape_of(v).lanes(1) + kLanes - 1) / kLanes; }
  T low(int64_t v) const { return static_cast<T>(kFixed ? -net.values_[v].zero : 0); }
  T high(int64_t v) const { return static_cast<T>(kFixed ? (1 << net.bits_) - 1 - net.values_[v].zero : 0); }
  float scale(int64_t v) const { return kFixed ? net.values_[v].scale : 1.0f; }

  // The zeros in front of a value and behind `num` elements of its planes.
  void clear_around(int64_t v, int64_t num) const {
    const LaneShape& shape = net.shape_of(v);
    kernels.clear(value(v) - shape.front(), 0, 1, shape.front());
    kernels.clear(value(v) + num, shape.plane(), net.values_[v].channels, shape.plane() - num);
  }

  void read(const float* x) const {
    const LaneShape& shape = net.shape_of(0);
    clear_around(0, shape.lanes(1));
    for (int64_t c = 0; c < net.values_[0].channels; ++c)
      for (int64_t r = 0; r < shape.height; ++r, x += shape.width) {
        T* row = value(0) + c * shape.plane() + r * shape.pitch();
        kernels.read(x, shape.width, 1.0f / scale(0), low(0), high(0), row);
        std::fill_n(row + shape.width, shape.pad, T{});
      }
  }

  void write(float* y) const {
    const LaneShape& shape = net.shape_of(net.result_);
    for (int64_t c = 0; c < net.values_[net.result_].channels; ++c)
      for (int64_t r = 0; r < shape.height; ++r) {
        const T* row = value(net.result_) + c * shape.plane() + r * shape.pitch();
        for (int64_t i = 0; i < shape.width; ++i) *y++ = static_cast<float>(row[i]) * scale(net.result_);
      }
  }

  // What is not a pixel is zero.
  void write_means(float* y) const {
    constexpr int kSums = 8;
    const LaneShape& shape = net.shape_of(net.result_);
    const float factor = scale(net.result_) / static_cast<float>(shape.height * shape.width);
    for (int64_t c = 0; c < net.values_[net.result_].channels; ++c) {
      const T* pixel = value(net.result_) + c * shape.plane();
      float sums[kSums] = {};
      for (int64_t first = 0; first < shape.lanes(1); first += kSums)
        for (int i = 0; i < kSums; ++i) sums[i] += static_cast<float>(pixel[first + i]);
      float sum = 0.0f;
      for (const float one : sums) sum += one;
      y[c] = sum * factor;
    }
  }

  void conv(const Step& step) const {
    const NetConv& conv = step.conv;
    const PlaneLayout& layout = step.planes;
    const LaneShape& shape = net.shape_of(conv.to);
    const int64_t all = vectors(conv.to), tiles = (all + kPlaneVectors - 1) / kPlaneVectors;
    PlaneConv<T> call = {layout.weights.data(), layout.starts.data(), layout.rules.data(), value(conv.from), value(conv.to),
                         shape.plane(), nullptr, 0, 0, mask(conv.to), conv.relu, true, true, low(conv.to), high(conv.to)};
    if (conv.added >= 0) {
      call.added = value(conv.added);
      call.added_first = conv.added_first;
      call.added_last = conv.added_first + net.values_[conv.added].channels;
    }
    const int workers = layout.kept * all * kLanes < kMinShared ? 1 : threads;
    const int64_t splits = workers == 1 || tiles % workers == 0 || tiles >= 4 * workers ? 1 : workers;
    run_tasks(tiles * splits, workers, [&](int64_t task) {
      const int64_t tile = task / splits, part = task % splits, first = all * tile / tiles;
      const auto num = static_cast<int>(all * (tile + 1) / tiles - first);
      PlaneConv<T> own = call;
      for (int64_t b = 0; b < layout.num_blocks; ++b, own.starts += layout.rows + 1) {
        own.is_first = b == 0;
        own.is_last = b + 1 == layout.num_blocks;
        kernels.conv(own, first * kLanes, num, layout.rows * part / splits, layout.rows * (part + 1) / splits);
      }
      return true;
    });
    clear_around(conv.to, all * kLanes);
  }

  void phases(const Step& step) const {
    const int64_t from = step.conv.from, to = step.conv.to;
    const LaneShape &large = net.shape_of(from), &small = net.shape_of(to);
    T* into = value(to);
    for (int64_t c = 0; c < net.values_[from].channels; ++c)
      for (const NetPhase& phase : step.phases) {
        // The last phase of an odd size has a row or a column less.
        const int64_t rows = (large.height - phase.row + 1) / 2, width = (large.width - phase.column + 1) / 2;
        kernels.phase(value(from) + c * large.plane() + phase.row * large.pitch() + phase.column, 2 * large.pitch(), rows,
                      width, small.pitch(), into);
        kernels.clear(into + rows * small.pitch(), 0, 1, small.plane() - rows * small.pitch());
        into += small.plane();
      }
    kernels.clear(value(to) - small.front(), 0, 1, small.front());
  }

  void largest(const Step& step) const {
    const NetConv& window = step.conv;
    const LaneShape& shape = net.shape_of(window.to);
    std::vector<int64_t> offsets;
    for (const NetPosition& at : window.positions)
      offsets.push_back(at.phase * shape.plane() + at.rows * shape.pitch() + at.columns);
    run_tasks(net.values_[window.to].channels, threads, [&](int64_t c) {
      kernels.largest(value(window.from) + c * window.phases * shape.plane(), offsets.data(),
                      static_cast<int64_t>(offsets.size()), mask(window.to), vectors(window.to),
                      value(window.to) + c * shape.plane());
      return true;
    });
    clear_around(window.to, vectors(window.to) * kLanes);
  }
};

template <class T>
void ConvNet::run_planes(const float* x, int64_t images, float* y, int num_threads) const {
  const bool apart = images >= num_threads;
  int64_t elements = 0;
  for (const int64_t slot : slot_elements_) elements += PlaneRun<T>::slot_size(slot);
  run_tasks(images, apart ? num_threads : 1, [&](int64_t image) {
    auto* memory = static_cast<T*>(thread_scratch(static_cast<size_t>(elements) * sizeof(T), Scratch::images));
    if (!memory) return false;
    const PlaneRun<T> run = {*this, plane_kernels<T>(), apart ? 1 : num_threads, memory};
    run.read(x + image * input_size());
    for (const Step& step : steps_) {
      if (step.kind == Step::Kind::conv) run.conv(step);
      if (step.kind == Step::Kind::phases) run.phases(step);
      if (step.kind == Step::Kind::largest) run.largest(step);
    }
    float* into = y + image * result_size();
    mean_ ? run.write_means(into) : run.write(into);
    return true;
  });
}

template void ConvNet::run_planes<float>(const float*, int64_t, float*, int) const;
template void ConvNet::run_planes<int16_t>(const float*, int64_t, float*, int) const;

}  // namespace gossamer
