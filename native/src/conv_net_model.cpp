// SPDX-License-Identifier: Apache-2.0
#include "gossamer/conv_net_model.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace gossamer {
namespace {

// Activations of the images that are run together: they stay in L2.
constexpr int64_t kMaxBytesTogether = int64_t{1} << 20;
constexpr int64_t kMaxTogether = 64;
constexpr int64_t kBlockColumns = 112;  // 28 KiB of lanes
constexpr size_t kMaxPositions = 1024;  // offsets of a block are 16 bits
constexpr int64_t kMaxLanes = int64_t{1} << 28;

void require(bool fits, const char* what) {
  if (!fits) throw std::invalid_argument(std::string("conv net: ") + what);
}

// Columns [column][64] of natural bytes, in blocks that stay in L1.
DwordCut byte_cut(int64_t columns) {
  constexpr int64_t kMost = 384;
  const int64_t blocks = std::max<int64_t>((columns + kMost - 1) / kMost, 1);
  DwordCut cut{(columns + blocks - 1) / blocks, {}};
  for (int64_t k = 0; k < cut.block_columns; ++k) cut.offsets.push_back(static_cast<uint16_t>(k * kTileTokens));
  return cut;
}

}  // namespace

const ConvNetKernels& conv_net_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  return isa == Isa::avx512 ? avx512::conv_net_kernels : reference::conv_net_kernels;
#else
  (void)isa;
  return reference::conv_net_kernels;
#endif
}

// Codes of planes have 16 bits with a sign; of values that are never negative 15 are used.
ConvNet::ConvNet(Isa isa, bool int8)
    : isa_(isa), int8_(int8), in_planes_(isa == Isa::avx2), bits_(in_planes_ ? 15 : int8_kernels(isa).activation_bits) {}

int64_t ConvNet::image_size(int64_t value) const {
  const LaneShape& shape = shape_of(value);
  return values_[value].channels * shape.height * shape.width;
}

// With the zeros below it, which a group has between its images: tiles of one alone may be fewer than its share.
int64_t ConvNet::image_elements(int64_t value) const {
  if (in_planes_) return shape_of(value).front() + values_[value].channels * shape_of(value).plane() + kPlaneSlack;
  const int64_t tiles = (shape_of(value).image_lanes() + kTileTokens - 1) / kTileTokens;
  return tiles * values_[value].channels * kTileTokens + kLaneSlack;
}

int64_t ConvNet::add_shape(const LaneShape& shape) {
  require(shape.height > 0 && shape.width > 0 && shape.pad >= 0, "a shape needs pixels");
  require(shape.height < kMaxLanes && shape.width < kMaxLanes && shape.pad < kMaxLanes &&
              (shape.height + shape.pad) < kMaxLanes / (shape.width + shape.pad), "images are too large");
  shapes_.push_back(shape);
  return static_cast<int64_t>(shapes_.size()) - 1;
}

int64_t ConvNet::add_value(const NetValue& value) {
  require(value.shape >= 0 && value.shape < static_cast<int64_t>(shapes_.size()), "a value has an unknown shape");
  require(value.channels > 0 && value.channels < (int64_t{1} << 24), "a value needs channels");
  require(!int8_ || (value.scale > 0.0f && value.zero >= 0 && value.zero < 1 << bits_), "a value of bytes needs a scale");
  values_.push_back(value);
  return static_cast<int64_t>(values_.size()) - 1;
}

void ConvNet::check_value(int64_t value) const {
  require(value >= 0 && value < static_cast<int64_t>(values_.size()), "a step names an unknown value");
}

void ConvNet::check_positions(const NetConv& conv, int64_t channels) const {
  check_value(conv.from);
  check_value(conv.to);
  require(result_ < 0, "it is finished");
  require(conv.from != conv.to && conv.to != 0, "a step needs a value of its own to write");
  require(values_[conv.from].shape == values_[conv.to].shape, "a step reads and writes images of one size");
  require(conv.phases > 0 && channels == conv.phases * (channels / conv.phases), "phases must divide the channels");
  require(!conv.positions.empty() && conv.positions.size() <= kMaxPositions, "a kernel needs positions, not too many");
  const int64_t pad = shape_of(conv.from).pad;
  for (const NetPosition& at : conv.positions) {
    require(at.phase >= 0 && at.phase < conv.phases, "a position names an unknown phase");
    require(std::max(std::abs(at.rows), std::abs(at.columns)) <= pad, "a position looks beyond the zeros of its images");
  }
}

ConvNet::Step& ConvNet::new_step(Step::Kind kind, const NetConv& conv) {
  steps_.emplace_back();
  steps_.back().kind = kind;
  steps_.back().conv = conv;
  return steps_.back();
}

void ConvNet::add_conv(const NetConv& conv, const KeptWeight& weight, const float* bias) {
  check_positions(conv, values_.at(std::max<int64_t>(conv.from, 0)).channels);
  const int64_t channels = values_[conv.from].channels / conv.phases;
  require(weight.columns == channels * static_cast<int64_t>(conv.positions.size()), "a weight has the wrong columns");
  require(weight.rows == values_[conv.to].channels, "a weight has the wrong rows");
  if (conv.added >= 0) {
    check_value(conv.added);
    require(conv.added != conv.to && values_[conv.added].shape == values_[conv.to].shape && conv.added_first >= 0 &&
                conv.added_first + values_[conv.added].channels <= weight.rows,
            "what is added does not fit");
  }
  Step& step = new_step(Step::Kind::conv, conv);
  step.bias.assign(weight.rows, 0.0f);
  if (bias) std::copy_n(bias, weight.rows, step.bias.begin());
  if (in_planes_) {
    pack_planes(step, weight);
  } else if (int8_) {
    step.quads = pack_int8(weight, {DwordForm::image, bits_, values_[conv.from].scale}, int8_kernels(isa_),
                           byte_cut(weight.columns));
    // Bytes of an input that is never negative start at zero: nothing to take back.
    if (values_[conv.from].zero == 0) std::fill(step.quads.row_starts.begin(), step.quads.row_starts.end(), 0);
  } else {
    // Blocks of whole channels: their lanes are gathered into L1 just before they are used up.
    const auto num_positions = static_cast<int64_t>(conv.positions.size());
    const PanelShape shape[] = {{0, std::max<int64_t>(kBlockColumns / num_positions, 1) * num_positions, 1}};
    step.panel = pack_panel(weight, shape, true);
  }
}

void ConvNet::add_phases(int64_t from, int64_t to, std::vector<NetPhase> phases) {
  check_value(from);
  check_value(to);
  require(result_ < 0 && from != to && to != 0 && !phases.empty(), "phases need values of their own");
  require(values_[to].channels == values_[from].channels * static_cast<int64_t>(phases.size()),
          "phases have the wrong number of channels");
  require(values_[to].scale == values_[from].scale && values_[to].zero == values_[from].zero,
          "phases have the scale of what they are taken from");
  for (const NetPhase& phase : phases) {
    require((phase.row | 1) == 1 && (phase.column | 1) == 1, "a phase is 0 or 1");
    require((shape_of(from).height - phase.row + 1) / 2 <= shape_of(to).height &&
                (shape_of(from).width - phase.column + 1) / 2 <= shape_of(to).width,
            "a phase is larger than the images it becomes");
  }
  new_step(Step::Kind::phases, {from, to, -1, 0, false, 1, {}}).phases = std::move(phases);
}

void ConvNet::add_largest(int64_t from, int64_t to, int64_t phases, std::vector<NetPosition> positions) {
  const NetConv window = {from, to, -1, 0, false, phases, std::move(positions)};
  check_positions(window, values_.at(std::max<int64_t>(from, 0)).channels);
  require(values_[from].channels == values_[to].channels * phases, "a window keeps the channels");
  require(values_[to].scale == values_[from].scale && values_[to].zero == values_[from].zero, "a window keeps the scale");
  new_step(Step::Kind::largest, window);
}

// Values that are no longer read give their place to later ones.
void ConvNet::place_values() {
  std::vector<size_t> last_use(values_.size(), 0);
  for (size_t i = 0; i < steps_.size(); ++i)
    for (const int64_t value : {steps_[i].conv.from, steps_[i].conv.to, steps_[i].conv.added})
      if (value >= 0) last_use[value] = i;
  last_use[result_] = steps_.size();
  slots_.assign(values_.size(), -1);
  std::vector<int64_t> free;
  const auto place = [&](int64_t value) {
    if (slots_[value] >= 0) return;
    if (free.empty()) {
      free.push_back(static_cast<int64_t>(slot_elements_.size()));
      slot_elements_.push_back(0);
    }
    slots_[value] = free.back();
    free.pop_back();
    int64_t& elements = slot_elements_[slots_[value]];
    elements = std::max(elements, image_elements(value));
  };
  place(0);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const NetConv& step = steps_[i].conv;
    require(slots_[step.from] >= 0 && (step.added < 0 || slots_[step.added] >= 0), "a step reads what nothing wrote");
    require(slots_[step.to] < 0, "a value is written twice");
    place(step.to);
    for (const int64_t value : {step.from, step.added})
      if (value >= 0 && last_use[value] == i && slots_[value] >= 0 &&
          std::find(free.begin(), free.end(), slots_[value]) == free.end())
        free.push_back(slots_[value]);
  }
  require(slots_[result_] >= 0, "nothing wrote the result");
}

void ConvNet::finish(int64_t result, bool mean) {
  check_value(result);
  require(result_ < 0, "it is finished");
  result_ = result;
  mean_ = mean;
  place_values();
  int64_t image_bytes = 0;
  for (const int64_t elements : slot_elements_) image_bytes += elements * (int8_ ? 1 : 4);
  images_together_ = in_planes_ ? 1 : std::clamp<int64_t>(kMaxBytesTogether / image_bytes, 1, kMaxTogether);
  for (const LaneShape& shape : shapes_) {
    std::vector<uint32_t> mask(in_planes_ ? shape.plane() : shape.tiles(images_together_) * kTileTokens, 0);
    for (int64_t image = 0; image < images_together_; ++image)
      for (int64_t row = 0; row < shape.height; ++row)
        std::fill_n(mask.begin() + image * shape.image_lanes() + row * shape.pitch(), shape.width, ~0u);
    if (in_planes_ && int8_) fixed_masks_.emplace_back(mask.begin(), mask.end());
    masks_.push_back(std::move(mask));
  }
}

size_t ConvNet::bytes() const {
  size_t total = 0;
  for (const Step& step : steps_)
    total += step.panel.bytes() + step.quads.bytes() + step.planes.bytes() + step.bias.size() * sizeof(float);
  return total;
}

}  // namespace gossamer
