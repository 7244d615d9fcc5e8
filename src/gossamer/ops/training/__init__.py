# SPDX-License-Identifier: Apache-2.0
"""Products that are trained through, their gradients, and optimizer steps.

Start with `compact_linear` and `compact_conv`, whose kept values are differentiable. `products`
says how their three ops are each other's derivatives; `expansion` goes between kept values and the
dense matrix; `optimizer_passes` are passes over memory for optimizers.
"""

from gossamer.ops.addresses import runs_native
from gossamer.ops.training.conv import compact_conv, kernel_settings, why_dense
from gossamer.ops.training.expansion import expand, expand_matrix, fill, gather, gather_kept
from gossamer.ops.training.linear import (
    compact_linear,
    expand_into,
    expand_values,
    resident_linear,
)
from gossamer.ops.training.linear_kernels import why_unusable
from gossamer.ops.training.optimizer_passes import Dither, NativeMoment, absorb, adamw_step

__all__ = [
    "Dither",
    "NativeMoment",
    "absorb",
    "adamw_step",
    "compact_conv",
    "compact_linear",
    "expand",
    "expand_into",
    "expand_matrix",
    "expand_values",
    "fill",
    "gather",
    "gather_kept",
    "kernel_settings",
    "resident_linear",
    "runs_native",
    "why_dense",
    "why_unusable",
]
