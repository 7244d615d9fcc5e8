# SPDX-License-Identifier: Apache-2.0
"""Products that are trained through, their gradients, and optimizer steps.

Start with `compact_linear` and `compact_conv`, whose kept values are differentiable. `products`
says how their three ops are each other's derivatives; `expansion` goes between kept values and the
dense matrix; `adamw` and `absorb` are passes over memory for optimizers.
"""
