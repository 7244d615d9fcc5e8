// SPDX-License-Identifier: Apache-2.0
// The weights of an encoder and the driver that runs its layers.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gossamer/cpu.hpp"
#include "gossamer/encoder.hpp"
#include "gossamer/int8_layout.hpp"
#include "gossamer/packed_weight.hpp"

namespace gossamer {

const EncoderKernels& encoder_kernels(Isa isa);
// VNNI is asked of the CPU: Isa::avx512 does without.
const EncoderInt8Kernels& encoder_int8_kernels(Isa isa);

// A linear layer from panel to panel. Immutable once packed.
struct PanelLinear {
  int64_t rows = 0, columns = 0, kept = 0;
  std::vector<float> bias;

  virtual ~PanelLinear() = default;
  virtual size_t bytes() const = 0;
  virtual size_t scratch_bytes() const = 0;  // 64-byte aligned
  virtual bool is_int8() const = 0;
  // out = act(W in + bias) for a tile with so many tokens, row tile by row tile on up to num_threads.
  void run(const float* in, float* out, Activation activation, int64_t tokens, void* scratch, int num_threads) const;

 protected:
  // What all row tiles need of the input, into the scratch.
  virtual void prepare(const float* in, int64_t tokens, void* scratch) const = 0;
  virtual int64_t num_parts() const = 0;
  virtual void run_part(int64_t part, const float* in, float* out, Activation activation, int64_t tokens,
                        const void* scratch) const = 0;
};

// `int8` is null for fp32, and `bias` may be. May throw std::bad_alloc.
std::unique_ptr<PanelLinear> pack_panel_linear(const KeptWeight& weight, const float* bias, Isa isa,
                                               const Int8Options* int8);
// In int8, zeros multiplied like the others (dense/gemm.hpp).
std::unique_ptr<PanelLinear> pack_dense_linear(const KeptWeight& weight, const float* bias, Isa isa);
// In int8, four weights of a window a step (int8_window.hpp).
std::unique_ptr<PanelLinear> pack_window_linear(const KeptWeight& weight, const float* bias, Isa isa);

struct NormWeights {
  std::vector<float> gain, shift;
  float epsilon;

  NormView view() const {
    return {gain.data(), shift.data(), static_cast<int64_t>(gain.size()), epsilon};
  }
};

// What a layer adds to the score of a query and a key by the distance between them.
struct DistanceBias {
  std::vector<float> by_distance;  // [heads or 1][2 reach - 1], of query - key; farther ones are the outermost
  int64_t reach = 0;               // 0: nothing is added
  int64_t window = 0;              // the farthest key that is seen; 0: all are

  bool operator==(const DistanceBias& other) const {
    return by_distance == other.by_distance && reach == other.reach && window == other.window;
  }
};

// Queries and keys are turned by their position times one frequency for each pair of features.
struct Rotation {
  std::vector<float> frequencies;  // [head_width / 2]; none: they are not turned
  float factor = 1.0f;             // of cosines and sines

  bool operator==(const Rotation& other) const { return frequencies == other.frequencies && factor == other.factor; }
};

// Cosines and sines of the positions that most sequences have: computed anew they were 2 % of a sparse encoder.
struct RotationTable {
  static constexpr int64_t kPositions = 512;
  Rotation rotation;
  std::vector<float> rows;  // [cosines, then sines][head_width / 2][kPositions]

  explicit RotationTable(Rotation of);
  float at(int64_t row, int64_t position) const {
    return position < kPositions ? rows[row * kPositions + position] : computed(row, position);
  }

 private:
  float computed(int64_t row, int64_t position) const;
};

// Attention computes in int8 where qkv does and there is a kernel for it. A layer with its norms last, as BERT has it:
//   x = norm(x + out(attention(qkv(x)))), x = norm(x + down(act(up(x))));
// and with its norms first, where a norm without gains does nothing:
//   x = x + out(attention(qkv(norm(x)))), x = x + down(act(up(norm(x)))).
// A gated one has act(first half) * second half of up's rows in the place of act.
struct EncoderLayer {
  std::shared_ptr<PanelLinear> qkv, out, up, down;
  NormWeights attention_norm, output_norm;
  int64_t heads, head_width;
  float scale;
  Activation activation;
  bool norm_first = false, is_gated = false;
  Rotation rotation;
  DistanceBias bias;
};

class EncoderModel {
 public:
  EncoderModel(Isa isa, int64_t features) 
      : kernels_(encoder_kernels(isa)), int8_kernels_(encoder_int8_kernels(isa)), features_(features) {}
  // Throws std::invalid_argument if sizes do not fit.
  void add(EncoderLayer layer);
  int64_t features() const { return features_; }
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  // y = layers(x), [tokens][features] both; sequences stand one after the other. Safe to call from several
  // threads. May throw std::bad_alloc.
  void run(const float* x, int64_t x_stride, float* y, int64_t y_stride, const std::vector<int64_t>& lengths,
           int num_threads) const;
  // The products of all layers for so many tokens, and nothing else, on one thread: what a run takes beside them is
  // the rest of its time. May throw std::bad_alloc.
  void run_products(int64_t tokens) const;

 private:
  // Sequences that fill whole tiles together, and where they begin.
  struct Group {
    int64_t first_token;
    std::vector<int64_t> lengths;
  };
  static std::vector<Group> groups_of(const std::vector<int64_t>& lengths);
  void run_group(const float* x, int64_t x_stride, float* y, int64_t y_stride, const std::vector<int64_t>& lengths,
                 int num_threads) const;
  // A layer and where what it shares with others is; -1: it has none.
  struct Entry {
    EncoderLayer layer;
    int64_t rotation, bias;
  };
  struct Buffers;
  void attend(const Entry& entry, const Buffers& buffers, const std::vector<int64_t>& lengths, int num_threads) const;
  size_t scratch_bytes() const;
  struct TileTask;
  void project(const Entry& entry, const Buffers& buffers, const TileTask& task, const float* pending) const;
  const float* finish(const EncoderLayer& layer, const Buffers& buffers, const TileTask& task) const;

  const EncoderKernels& kernels_;
  const EncoderInt8Kernels& int8_kernels_;
  int64_t features_;
  std::vector<Entry> layers_;
  std::vector<RotationTable> rotations_;
  std::vector<DistanceBias> biases_;
};

}  // namespace gossamer
