// SPDX-License-Identifier: Apache-2.0
// The weights of a convolutional network and the driver that runs it: a list of steps over numbered values.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gossamer/conv_net.hpp"
#include "gossamer/conv_planes.hpp"
#include "gossamer/encoder_model.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/panel_layout.hpp"

namespace gossamer {

// Images of one size in lanes: `pad` zeros behind every row and as many rows of them below every image.
struct LaneShape {
  int64_t height, width, pad;

  int64_t pitch() const { return width + pad; }
  int64_t image_lanes() const { return (height + pad) * pitch(); }
  // Up to the last pixel.
  int64_t lanes(int64_t images) const { return images ? (images - 1) * image_lanes() + height * pitch() : 0; }
  int64_t tiles(int64_t images) const { return (lanes(images) + kTileTokens - 1) / kTileTokens; }
  // One image as a plane (conv_planes.hpp): a step from channel to channel, zeros at its end, and zeros in front of the
  // first. Vectors may run over the end of its pixels.
  int64_t plane() const {
    const int64_t zeros = image_lanes() + pad, room = lanes(1) + 16;
    return ((zeros > room ? zeros : room) + 15) / 16 * 16;
  }
  int64_t front() const { return (pad * pitch() + pad + 31) / 32 * 32; }
};

// An activation. Codes stand for (code - zero) * scale; scale is 0 in fp32. Planes hold code - zero.
struct NetValue {
  int64_t shape, channels;  // which of the shapes
  float scale;
  int zero;
};

// Where a kernel position looks: a phase of the input's channels, shifted by rows and columns.
struct NetPosition {
  int64_t phase, rows, columns;
};

// Part of the image that a phase takes: rows and columns 2 i + this.
struct NetPhase {
  int64_t row, column;
};

// A weight for planes: block after block of channels, so that the pixels of a tile stay in L1.
struct PlaneLayout {
  int64_t kept = 0, rows = 0, num_blocks = 0;
  std::vector<PlaneWeight> weights;
  std::vector<int64_t> starts;  // [block][rows + 1]
  std::vector<PlaneRule> rules;

  size_t bytes() const {
    return weights.size() * sizeof(PlaneWeight) + starts.size() * sizeof(int64_t) + rules.size() * sizeof(PlaneRule);
  }
};

struct NetConv {
  int64_t from, to;
  int64_t added, added_first;  // a value to add, or -1, and the first channel it is added to
  bool relu;
  int64_t phases;  // channels of `from` that stand for one of the weight
  std::vector<NetPosition> positions;
};

class ConvNet {
 public:
  ConvNet(Isa isa, bool int8);

  // All of them throw std::invalid_argument for what does not fit.
  int64_t add_shape(const LaneShape& shape);
  int64_t add_value(const NetValue& value);
  // Value 0 is the input. The weight is [rows][channels / phases * positions].
  void add_conv(const NetConv& conv, const KeptWeight& weight, const float* bias);
  void add_phases(int64_t from, int64_t to, std::vector<NetPhase> phases);
  // The largest of the positions; values are not negative.
  void add_largest(int64_t from, int64_t to, int64_t phases, std::vector<NetPosition> positions);
  // What run() gives: a value as images, or the mean of each of its channels.
  void finish(int64_t result, bool mean);

  bool int8() const { return int8_; }
  int activation_bits() const { return bits_; }
  size_t bytes() const;
  // x [images][channels][height][width] to y, of the same order, or [images][channels] of means. Safe to call from
  // several threads. May throw std::bad_alloc.
  void run(const float* x, int64_t images, float* y, int num_threads) const;
  int64_t input_size() const { return image_size(0); }
  int64_t result_size() const { return mean_ ? values_[result_].channels : image_size(result_); }

 private:
  struct Step {
    enum class Kind { conv, phases, largest } kind;
    NetConv conv;
    std::vector<NetPhase> phases;
    PanelLayout panel;
    Int8Layout quads;
    PlaneLayout planes;
    std::vector<float> bias;
  };
  template <class T>
  struct Group;
  template <class T>
  struct PlaneRun;

  const LaneShape& shape_of(int64_t value) const { return shapes_[values_[value].shape]; }
  int64_t image_size(int64_t value) const;
  int64_t image_elements(int64_t value) const;
  void check_value(int64_t value) const;
  void check_positions(const NetConv& conv, int64_t channels) const;
  static bool is_pointwise(const NetConv& conv);
  Step& new_step(Step::Kind kind, const NetConv& conv);
  void place_values();
  void pack_planes(Step& step, const KeptWeight& weight) const;
  PlaneRule plane_rule(const NetConv& conv, const float* values, int64_t kept, float bias, float* factor) const;
  template <class T>
  void run_planes(const float* x, int64_t images, float* y, int num_threads) const;
  template <class T>
  void run_groups(const float* x, int64_t images, float* y, int num_threads) const;

  Isa isa_;
  bool int8_;
  bool in_planes_;  // whole planes instead of tiles; int8 then computes in 16 bits of fixed point
  int bits_;
  int64_t result_ = -1;
  bool mean_ = false;
  int64_t images_together_ = 1;
  std::vector<LaneShape> shapes_;
  std::vector<std::vector<uint32_t>> masks_;  // of each shape, for images_together_ images
  std::vector<std::vector<int16_t>> fixed_masks_;
  std::vector<NetValue> values_;
  std::vector<Step> steps_;
  std::vector<int64_t> slots_, slot_elements_;  // of values: where they lie; of slots: elements for each image
};

}  // namespace gossamer
