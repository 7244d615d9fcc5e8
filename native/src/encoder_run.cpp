// SPDX-License-Identifier: Apache-2.0
// Layers of an encoder, tile of tokens by tile of tokens; attention meets all tiles of a sequence, so a layer is
// two rounds of tasks: (sequence, head), then everything from its output to the next layer's q, k, v for a tile.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "gossamer/encoder_model.hpp"
#include "gossamer/fork.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

size_t panel_floats(int64_t features) { return static_cast<size_t>(features) * kTileTokens; }

void check_size(const char* what, int64_t found, int64_t expected) {
  if (found != expected)
    throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(expected) + ", got " +
                                std::to_string(found));
}

}  // namespace

struct EncoderModel::Buffers {
  Panels hidden, qkv, mixed;
};

void EncoderModel::add(EncoderLayer layer) {
  const int64_t mixed = layer.heads * layer.head_width;
  if (layer.heads < 0 || layer.head_width < 1) throw std::invalid_argument("heads and head_width must be positive");
  check_size("columns of qkv", layer.qkv->columns, features_);
  check_size("rows of qkv", layer.qkv->rows, 3 * mixed);
  check_size("columns of out", layer.out->columns, mixed);
  check_size("rows of out", layer.out->rows, features_);
  check_size("columns of up", layer.up->columns, features_);
  check_size("columns of down", layer.down->columns, layer.up->rows);
  check_size("rows of down", layer.down->rows, features_);
  for (const NormWeights* norm : {&layer.attention_norm, &layer.output_norm}) {
    check_size("gains of a norm", static_cast<int64_t>(norm->gain.size()), features_);
    check_size("shifts of a norm", static_cast<int64_t>(norm->shift.size()), features_);
  }
  layers_.push_back(std::move(layer));
}

// What one thread needs beside the panels: results of products of a tile, and the scratch of a product.
size_t EncoderModel::scratch_bytes() const {
  int64_t inner = 0;
  size_t most = 0;
  for (const EncoderLayer& layer : layers_) {
    inner = std::max(inner, layer.up->rows);
    for (const auto* linear : {&layer.qkv, &layer.out, &layer.up, &layer.down})
      most = std::max(most, (*linear)->scratch_bytes());
  }
  return (panel_floats(inner) + panel_floats(features_)) * sizeof(float) + most;
}

// A tile, the tokens in it, and how many threads may share its products.
struct EncoderModel::TileTask {
  int64_t tile, tokens;
  void* scratch;
  int num_threads;
};

void EncoderModel::project(const EncoderLayer& layer, const Buffers& buffers, const TileTask& task) const {
  layer.qkv->run(buffers.hidden.tile(task.tile), buffers.qkv.tile(task.tile), Activation::none, task.tokens,
                 task.scratch, task.num_threads);
}

void EncoderModel::finish(const EncoderLayer& layer, const Buffers& buffers, const TileTask& task) const {
  auto* delta = static_cast<float*>(task.scratch);
  float* inner = delta + panel_floats(features_);
  float* rest = inner + panel_floats(layer.up->rows);
  const auto product = [&](const PanelLinear& linear, const float* in, float* out, Activation activation) {
    linear.run(in, out, activation, task.tokens, rest, task.num_threads);
  };
  float* x = buffers.hidden.tile(task.tile);
  product(*layer.out, buffers.mixed.tile(task.tile), delta, Activation::none);
  kernels_.add_norm(x, delta, layer.attention_norm.view(), task.tokens);
  product(*layer.up, x, inner, layer.activation);
  product(*layer.down, inner, delta, Activation::none);
  kernels_.add_norm(x, delta, layer.output_norm.view(), task.tokens);
}

void EncoderModel::attend(const EncoderLayer& layer, const Buffers& buffers, const std::vector<int64_t>& lengths,
                          int num_threads) const {
  std::vector<int64_t> first(lengths.size() + 1, 0);
  for (size_t i = 0; i < lengths.size(); ++i) first[i + 1] = first[i] + lengths[i];
  const int64_t width = layer.head_width, all = layer.heads * width;
  const bool in_int8 = layer.qkv->is_int8() && int8_kernels_.attend;
  run_tasks(static_cast<int64_t>(lengths.size()) * layer.heads, num_threads, [&](int64_t i) {
    const int64_t sequence = i / layer.heads, feature = i % layer.heads * width;
    const AttentionCall call = {buffers.qkv,   feature, all + feature,   2 * all + feature,  buffers.mixed,
                                feature,       width,   first[sequence], lengths[sequence], layer.scale};
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

void EncoderModel::run_group(const float* x, int64_t x_stride, float* y, int64_t y_stride,
                             const std::vector<int64_t>& lengths, int num_threads) const {
  int64_t tokens = 0, mixed = 0;
  for (const int64_t length : lengths) tokens += length;
  for (const EncoderLayer& layer : layers_) mixed = std::max(mixed, layer.heads * layer.head_width);
  const int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;

  const size_t hidden_floats = panel_floats(features_) * tiles, qkv_floats = panel_floats(3 * mixed) * tiles;
  const size_t mixed_floats = panel_floats(mixed) * tiles;
  auto* memory = static_cast<float*>(thread_scratch(
      (hidden_floats + qkv_floats + mixed_floats + kTileTokens) * sizeof(float), Scratch::images));
  if (!memory) throw std::bad_alloc();
  const Buffers buffers = {{memory, features_},
                           {memory + hidden_floats, 3 * mixed},
                           {memory + hidden_floats + qkv_floats, mixed}};
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
    if (!layers_.empty()) project(layers_.front(), buffers, task);
  });
  for (size_t i = 0; i < layers_.size(); ++i) {
    attend(layers_[i], buffers, lengths, num_threads);
    each_tile([&](const TileTask& task) {
      finish(layers_[i], buffers, task);
      if (i + 1 < layers_.size()) project(layers_[i + 1], buffers, task);
    });
  }
  each_tile([&](const TileTask& task) {
    kernels_.from_panel(buffers.hidden.tile(task.tile), task.tokens, features_, y + task.tile * kTileTokens * y_stride,
                        y_stride);
  });
}

}  // namespace gossamer
