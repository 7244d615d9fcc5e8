// SPDX-License-Identifier: Apache-2.0
// The three products of a training step with a sparse convolution, straight from values and mask bits.
//
// As in train.hpp every call makes its layout and drops it, and results do not depend on the number of
// threads. Images are contiguous NCHW. All may throw std::bad_alloc.
#pragma once
#include "gossamer/conv_layout.hpp"

namespace gossamer {

// y = conv(x, W) + bias.
void train_conv(const KeptWeight& weight, const ConvGeometry& geometry, const float* x, int64_t images,
                const float* bias, float* y, Isa isa, int num_threads);

// dX [images][groups * channels][height][width] of dY [images][rows][out_h][out_w].
//
// This is a convolution of dY with the turned weight for every phase of the stride: the pixels of x
// that lie at one place between two steps all meet the same part of the kernel.
void train_conv_grad_input(const KeptWeight& weight, const ConvGeometry& geometry, const float* grad,
                           int64_t images, float* dx, Isa isa, int num_threads);

// grad_values = (dY patches^T)[mask]; weight.values is not read.
void train_conv_grad_values(const KeptWeight& weight, const ConvGeometry& geometry, const float* grad,
                            const float* x, int64_t images, float* grad_values, Isa isa, int num_threads);

}  // namespace gossamer
