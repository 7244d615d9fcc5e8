// SPDX-License-Identifier: Apache-2.0
// What owns the matrices of a NeuronView, and the driver.
#pragma once
#include <cstdint>
#include <vector>

#include "gossamer/big_alloc.hpp"
#include "gossamer/cpu.hpp"
#include "gossamer/neurons.hpp"

namespace gossamer {

const NeuronKernels& neuron_kernels(Isa isa);

enum class NeuronType : int { fp32 = 0, bf16 = 1, int8 = 2 };

struct NeuronWeights {
  const float *gate, *up, *down;    // [neurons][features]; up may be null
  const float *gate_bias, *up_bias;  // may be null
  int64_t neurons, features;
  float shift, threshold;
  int power;
  NeuronType rows;
};

// Rows of one type.
struct NeuronMatrix {
  BigVector<float> fp32;
  BigVector<uint16_t> bf16;
  BigVector<int8_t> int8;
  std::vector<float> scales;

  void fill(const float* from, const NeuronWeights& weights, int64_t stride);
  NeuronRows view() const;
  size_t bytes() const;
};

// Immutable once built: run() may be called from several threads at once.
class NeuronBlock {
 public:
  // May throw std::bad_alloc.
  NeuronBlock(const NeuronWeights& weights, Isa isa);
  // y [features] of one token; returns how many neurons were active, whose entries of `seen` [neurons], if it is not
  // null, become 1. May throw std::bad_alloc.
  int64_t run(const float* x, float* y, int num_threads, uint8_t* seen = nullptr) const;
  // Only these neurons are looked at, each at most once: someone knows that the others are zero.
  int64_t run_known(const float* x, const int32_t* known, int64_t count, float* y, int num_threads) const;
  int64_t neurons() const { return view_.neurons; }
  int64_t features() const { return view_.features; }
  size_t bytes() const;

 private:
  // task(part, number of parts, sum of the part) gives how many neurons were active.
  template <class Task>
  int64_t add_parts(int64_t most, float* y, int num_threads, const Task& task) const;
  void encode(const NeuronWeights& weights, int64_t neuron, int64_t padded);
  CodedInput code(const float* x, std::vector<int16_t>& coded) const;

  const NeuronKernels& kernels_;
  NeuronView view_{};
  NeuronMatrix gate_, up_, down_;
  BigVector<uint16_t> high_, low_;
  std::vector<float> gate_bias_, up_bias_, code_scales_, row_norms_, high_means_, high_errors_, low_errors_;
};

}  // namespace gossamer
