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

struct NeuronWeights {
  const float *gate, *up, *down;    // [neurons][features]; up may be null
  const float *gate_bias, *up_bias;  // may be null
  int64_t neurons, features;
  float shift;
  int power;
  bool bf16;
};

// Immutable once built: run() may be called from several threads at once.
class NeuronBlock {
 public:
  // May throw std::bad_alloc.
  NeuronBlock(const NeuronWeights& weights, Isa isa);
  // y [features] of one token; returns how many neurons were active. May throw std::bad_alloc.
  int64_t run(const float* x, float* y, int num_threads) const;
  // Only these neurons are looked at, each at most once: someone knows that the others are zero.
  int64_t run_known(const float* x, const int32_t* known, int64_t count, float* y, int num_threads) const;
  int64_t neurons() const { return view_.neurons; }
  int64_t features() const { return view_.features; }
  size_t bytes() const;

 private:
  // task(part, number of parts, sum of the part) gives how many neurons were active.
  template <class Task>
  int64_t add_parts(int64_t most, float* y, int num_threads, const Task& task) const;

  const NeuronKernels& kernels_;
  NeuronView view_{};
  BigVector<float> gate_, up_, down_;
  BigVector<uint16_t> gate_bf16_, up_bf16_, down_bf16_;
  BigVector<int8_t> codes_;
  std::vector<float> gate_bias_, up_bias_, code_scales_, row_norms_;
};

}  // namespace gossamer
