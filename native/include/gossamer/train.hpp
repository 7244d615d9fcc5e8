// SPDX-License-Identifier: Apache-2.0
// The three products of a training step with a sparse fp32 weight, straight from values and mask bits.
//
// Every call makes its layout and drops it: 6 bytes per kept weight plus 14 per row of a column block
// while it runs, nothing afterwards but each thread's scratch. Results do not depend on the number of
// threads. All may throw std::bad_alloc.
#pragma once
#include "gossamer/cpu.hpp"
#include "gossamer/packed_weight.hpp"
#include "gossamer/sampled.hpp"

namespace gossamer {

const SampledKernels& sampled_kernels(Isa isa);

// y = x W^T + bias.
void train_linear(const KeptWeight& weight, const LinearCall& call, Isa isa, int num_threads);

// y = x W, where x is the gradient dY [tokens][rows] and y becomes dX [tokens][columns].
void train_grad_input(const KeptWeight& weight, const LinearCall& call, Isa isa, int num_threads);

// grad_values = (dY^T X)[mask], in the order of the values; weight.values is not read.
void train_grad_values(const KeptWeight& weight, const SampledCall& call, float* grad_values, Isa isa,
                       int num_threads);

}  // namespace gossamer
