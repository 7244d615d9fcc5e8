// SPDX-License-Identifier: Apache-2.0
// Layers of an encoder, tile of tokens by tile of tokens; attention meets all tiles of a sequence, so a layer is
// two rounds of tasks: (sequence, head), then everything from its output to the next layer's q, k, v for a tile.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "encoder_positions.hpp"
#include "gossamer/encoder_model.hpp"
#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

void add_panel(float* __restrict x, const float* __restrict delta, int64_t features) {
  for (int64_t i = 0; i < features * kTileTokens; ++i) x[i] += delta[i];
}

size_t panel_floats(int64_t features) { return static_cast<size_t>(features) * kTileTokens; }

void check_size(const char* what, int64_t found, int64_t expected) {
  if (found != expected)
    throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(expected) + ", got " +
                                std::to_string(found));
}

}  // namespace

RotationTable::RotationTable(Rotation of) : rotation(std::move(of)) {
  const auto num_rows = static_cast<int64_t>(rotation.frequencies.size()) * 2;
  rows.resize(num_rows * kPositions);
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t i = 0; i < kPositions; ++i) rows[row * kPositions + i] = computed(row, i);
}

float RotationTable::computed(int64_t row, int64_t position) const {
  const auto half = static_cast<int64_t>(rotation.frequencies.size());
  // The angle is rounded to fp32, as models round it: far positions would turn elsewhere otherwise.
  const float angle = static_cast<float>(position) * rotation.frequencies[row % half];
  return (row < half ? std::cos(angle) : std::sin(angle)) * rotation.factor;
}

struct EncoderModel::Buffers {
  Panels hidden, qkv, mixed;
  std::vector<float*> turns, biases;  // of rotations_ and biases_
  int64_t longest;
};

void EncoderModel::add(EncoderLayer layer) {
  const int64_t mixed = layer.heads * layer.head_width;
  if (layer.heads < 0 || layer.head_width < 1) throw std::invalid_argument("heads and head_width must be positive");
  check_size("columns of qkv", layer.qkv->columns, features_);
  check_size("rows of qkv", layer.qkv->rows, 3 * mixed);
  check_size("columns of out", layer.out->columns, mixed);
  check_size("rows of out", layer.out->rows, features_);
  check_size("columns of up", layer.up->columns, features_);
  if (layer.is_gated && layer.up->rows % 2) throw std::invalid_argument("a gated layer has an even number of rows of up");
  check_size("columns of down", layer.down->columns, layer.is_gated ? layer.up->rows / 2 : layer.up->rows);
  check_size("rows of down", layer.down->rows, features_);
  for (const NormWeights* norm : {&layer.attention_norm, &layer.output_norm}) {
    if (layer.norm_first && norm->gain.empty() && norm->shift.empty()) continue;
    check_size("gains of a norm", static_cast<int64_t>(norm->gain.size()), features_);
    check_size("shifts of a norm", static_cast<int64_t>(norm->shift.size()), features_);
  }
  const auto turned = static_cast<int64_t>(layer.rotation.frequencies.size());
  if (turned) check_size("frequencies of a rotation", turned * 2, layer.head_width);
  const DistanceBias& bias = layer.bias;
  if (bias.reach < 0 || bias.window < 0) throw std::invalid_argument("reach and window must not be negative");
  if (bias.reach > static_cast<int64_t>(bias.by_distance.size()))
    throw std::invalid_argument("reach must not be more than there are biases");
  layer.bias.window = std::min(bias.window, INT64_MAX / 4);  // so that sums with it stay numbers
  if (bias.reach && bias_rows(bias) != 1) check_size("heads of a bias", bias_rows(bias), layer.heads);
  check_size("biases", static_cast<int64_t>(bias.by_distance.size()), bias.reach ? bias_rows(bias) * (2 * bias.reach - 1) : 0);
  Entry entry = {std::move(layer), -1, -1};
  if (turned) {
    entry.rotation = 0;
    for (const RotationTable& table : rotations_) {
      if (table.rotation == entry.layer.rotation) break;
      ++entry.rotation;
    }
    if (entry.rotation == static_cast<int64_t>(rotations_.size())) rotations_.emplace_back(entry.layer.rotation);
  }
  if (entry.layer.bias.reach || entry.layer.bias.window) {
    entry.bias = std::find(biases_.begin(), biases_.end(), entry.layer.bias) - biases_.begin();
    if (entry.bias == static_cast<int64_t>(biases_.size())) biases_.push_back(entry.layer.bias);
  }
  layers_.push_back(std::move(entry));
}

// What one thread needs beside the panels: results of products of a tile, and the scratch of a product.
size_t EncoderModel::scratch_bytes() const {
  int64_t inner = 0;
  size_t most = 0;
  for (const auto& [layer, rotation, bias] : layers_) {
    inner = std::max(inner, layer.up->rows);
    for (const auto* linear : {&layer.qkv, &layer.out, &layer.up, &layer.down})
      most = std::max(most, (*linear)->scratch_bytes());
  }
  return (panel_floats(inner) + 2 * panel_floats(features_)) * sizeof(float) + most;
}

// A tile, the tokens in it, and how many threads may share its products.
struct EncoderModel::TileTask {
  int64_t tile, tokens;
  void* scratch;
  int num_threads;
};

// Queries, keys and values of a layer. `pending` is what the layer before left to be added, or null.
void EncoderModel::project(const Entry& entry, const Buffers& buffers, const TileTask& task, const float* pending) const {
  const EncoderLayer& layer = entry.layer;
  float *x = buffers.hidden.tile(task.tile), *qkv = buffers.qkv.tile(task.tile);
  float* normed = static_cast<float*>(task.scratch) + panel_floats(features_);
  const float* in = x;
  if (layer.norm_first && !layer.attention_norm.gain.empty()) {
    kernels_.add_norm(x, pending, layer.attention_norm.view(), normed, task.tokens);
    in = normed;
  } else if (pending) {
    add_panel(x, pending, features_);
  }
  layer.qkv->run(in, qkv, Activation::none, task.tokens, normed + panel_floats(features_), task.num_threads);
  if (entry.rotation >= 0) {
    const size_t tile_floats = turn_floats(layer.rotation);
    kernels_.rotate(qkv, 2 * layer.heads, layer.head_width, buffers.turns[entry.rotation] + task.tile * tile_floats);
  }
}

// The rest of a layer. Gives what is still to be added to the hidden state, or null.
const float* EncoderModel::finish(const EncoderLayer& layer, const Buffers& buffers, const TileTask& task) const {
  auto* delta = static_cast<float*>(task.scratch);
  float* normed = delta + panel_floats(features_);
  float* inner = normed + panel_floats(features_);
  float* rest = inner + panel_floats(layer.up->rows);
  const auto product = [&](const PanelLinear& linear, const float* in, float* out, Activation activation) {
    linear.run(in, out, activation, task.tokens, rest, task.num_threads);
  };
  float* x = buffers.hidden.tile(task.tile);
  product(*layer.out, buffers.mixed.tile(task.tile), delta, Activation::none);
  float* in = layer.norm_first ? normed : x;
  const NormWeights& norm = layer.norm_first ? layer.output_norm : layer.attention_norm;
  if (norm.gain.empty()) {
    add_panel(x, delta, features_);
    in = x;
  } else {
    kernels_.add_norm(x, delta, norm.view(), in, task.tokens);
  }
  product(*layer.up, in, inner, layer.is_gated ? Activation::none : layer.activation);
  if (layer.is_gated) kernels_.gate(inner, layer.up->rows, layer.activation, task.tokens);
  product(*layer.down, inner, delta, Activation::none);
  if (layer.norm_first) return delta;
  kernels_.add_norm(x, delta, layer.output_norm.view(), x, task.tokens);
  return nullptr;
}

void EncoderModel::attend(const Entry& entry, const Buffers& buffers, const std::vector<int64_t>& lengths,
                          int num_threads) const {
  const EncoderLayer& layer = entry.layer;
  std::vector<int64_t> first(lengths.size() + 1, 0);
  for (size_t i = 0; i < lengths.size(); ++i) first[i + 1] = first[i] + lengths[i];
  const int64_t width = layer.head_width, all = layer.heads * width;
  const bool in_int8 = layer.qkv->is_int8() && int8_kernels_.attend;
  run_tasks(static_cast<int64_t>(lengths.size()) * layer.heads, num_threads, [&](int64_t i) {
    const int64_t sequence = i / layer.heads, feature = i % layer.heads * width;
    AttentionCall call = {buffers.qkv,   feature, all + feature,   2 * all + feature,  buffers.mixed,
                          feature,       width,   first[sequence], lengths[sequence], layer.scale};
    if (entry.bias >= 0) {
      const int64_t row = bias_rows(layer.bias) > 1 ? i % layer.heads : 0;
      call.bias = buffers.biases[entry.bias] + row * bias_row_floats(buffers.longest) + buffers.longest - 1;
      if (layer.bias.window) call.window = layer.bias.window;
    }
    void* scratch = thread_scratch(in_int8 ? int8_attention_scratch_bytes(lengths[sequence], width)
                                           : attention_scratch_floats(lengths[sequence]) * sizeof(float));
    if (scratch && in_int8) int8_kernels_.attend(call, scratch);
    if (scratch && !in_int8) kernels_.attend(call, static_cast<float*>(scratch));
    return scratch != nullptr;
  });
}

// Tiles are the same as those of all sequences at once: the results are, too.
std::vector<EncoderModel::Group> EncoderModel::groups_of(const std::vector<int64_t>& lengths) {
  std::vector<Group> groups;
  int64_t token = 0;
  bool is_open = false;
  for (const int64_t length : lengths) {
    if (!is_open) groups.push_back({token, {}});
    groups.back().lengths.push_back(length);
    token += length;
    is_open = token % kTileTokens != 0 || token == groups.back().first_token;
  }
  return groups;
}

// Each group goes through all layers before the next one starts: what it holds stays in L2 (6 to 8 % at 8 sequences
// of 128), and threads with a group each never wait. The last groups, too few for that, share the threads.
void EncoderModel::run(const float* x, int64_t x_stride, float* y, int64_t y_stride,
                       const std::vector<int64_t>& lengths, int num_threads) const {
  num_threads = usable_threads(num_threads);
  const std::vector<Group> groups = groups_of(lengths);
  const auto num_groups = static_cast<int64_t>(groups.size()), apart = num_groups / num_threads * num_threads;
  const auto run_one = [&](int64_t i, int threads) {
    const Group& group = groups[i];
    run_group(x + group.first_token * x_stride, x_stride, y + group.first_token * y_stride, y_stride, group.lengths,
              threads);
  };
  run_tasks(apart, num_threads, [&](int64_t i) {
    run_one(i, 1);
    return true;
  });
  for (int64_t i = apart; i < num_groups; ++i) run_one(i, num_threads);
}

void EncoderModel::run_products(int64_t tokens) const {
  int64_t widest = features_;
  for (const Entry& entry : layers_)
    for (const auto* linear : {&entry.layer.qkv, &entry.layer.out, &entry.layer.up, &entry.layer.down})
      widest = std::max({widest, (*linear)->rows, (*linear)->columns});
  auto* from = static_cast<float*>(thread_scratch(2 * panel_floats(widest) * sizeof(float), Scratch::images));
  void* scratch = thread_scratch(scratch_bytes());
  if (!from || !scratch) throw std::bad_alloc();
  for (size_t i = 0; i < panel_floats(widest); ++i) from[i] = static_cast<float>(i % 13) - 6.0f;
  for (const Entry& entry : layers_)
    for (int64_t done = 0; done < tokens; done += kTileTokens) {
      const EncoderLayer& layer = entry.layer;
      for (const auto* linear : {&layer.qkv, &layer.out, &layer.up, &layer.down}) {
        const bool acts = linear == &layer.up && !layer.is_gated;
        (*linear)->run(from, from + panel_floats(widest), acts ? layer.activation : Activation::none,
                       std::min<int64_t>(kTileTokens, tokens - done), scratch, 1);
      }
    }
}

void EncoderModel::run_group(const float* x, int64_t x_stride, float* y, int64_t y_stride,
                             const std::vector<int64_t>& lengths, int num_threads) const {
  int64_t tokens = 0, mixed = 0;
  for (const int64_t length : lengths) tokens += length;
  for (const Entry& entry : layers_) mixed = std::max(mixed, entry.layer.heads * entry.layer.head_width);
  const int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;

  const size_t hidden_floats = panel_floats(features_) * tiles, qkv_floats = panel_floats(3 * mixed) * tiles;
  const size_t mixed_floats = panel_floats(mixed) * tiles;
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  size_t floats = hidden_floats + qkv_floats + mixed_floats + kTileTokens;
  std::vector<size_t> turns, biases;  // where they begin; those of tiles are aligned like panels
  for (const RotationTable& table : rotations_) {
    turns.push_back(floats);
    floats += turn_floats(table.rotation) * tiles;
  }
  for (const DistanceBias& bias : biases_) {
    biases.push_back(floats);
    if (longest) floats += bias_rows(bias) * bias_row_floats(longest);
  }
  auto* memory = static_cast<float*>(thread_scratch(floats * sizeof(float), Scratch::images));
  if (!memory) throw std::bad_alloc();
  Buffers buffers = {{memory, features_},
                     {memory + hidden_floats, 3 * mixed},
                     {memory + hidden_floats + qkv_floats, mixed},
                     {},
                     {},
                     longest};
  for (const size_t start : turns) buffers.turns.push_back(memory + start);
  for (const size_t start : biases) buffers.biases.push_back(memory + start);
  for (size_t i = 0; i < turns.size(); ++i) {
    // Lanes without a token are turned by nothing.
    std::fill_n(buffers.turns[i], turn_floats(rotations_[i].rotation) * tiles, 0.0f);
    fill_turns(rotations_[i], lengths, buffers.turns[i]);
  }
  for (size_t i = 0; longest && i < biases.size(); ++i) fill_bias(biases_[i], longest, buffers.biases[i]);
  const auto tile_tokens = [&](int64_t tile) { return std::min<int64_t>(kTileTokens, tokens - tile * kTileTokens); };
  const size_t bytes = scratch_bytes();
  // Threads take tiles, or share the products of one where there are not enough.
  const bool apart = tiles >= num_threads;
  const auto each_tile = [&](auto&& work) {
    run_tasks(tiles, apart ? num_threads : 1, [&](int64_t tile) {
      void* scratch = thread_scratch(bytes);
      if (scratch) work(TileTask{tile, tile_tokens(tile), scratch, apart ? 1 : num_threads});
      return scratch != nullptr;
    });
  };
  each_tile([&](const TileTask& task) {
    float* panel = buffers.hidden.tile(task.tile);
    kernels_.to_panel(x + task.tile * kTileTokens * x_stride, x_stride, task.tokens, features_, panel);
    if (!layers_.empty()) project(layers_.front(), buffers, task, nullptr);
  });
  for (size_t i = 0; i < layers_.size(); ++i) {
    attend(layers_[i], buffers, lengths, num_threads);
    each_tile([&](const TileTask& task) {
      const float* pending = finish(layers_[i].layer, buffers, task);
      if (i + 1 < layers_.size())
        project(layers_[i + 1], buffers, task, pending);
      else if (pending)
        add_panel(buffers.hidden.tile(task.tile), pending, features_);
    });
  }
  each_tile([&](const TileTask& task) {
    kernels_.from_panel(buffers.hidden.tile(task.tile), task.tokens, features_, y + task.tile * kTileTokens * y_stride,
                        y_stride);
  });
}

}  // namespace gossamer
