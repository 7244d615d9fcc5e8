# SPDX-License-Identifier: Apache-2.0
"""Products that are trained through: their kept values are differentiable.

Start with `compact_linear` and `compact_conv`; `why_unusable` and `why_dense` say why kernels
cannot run one, and `kernel_settings` what they make of a convolution's. `resident_linear` works on
a dense copy that `expand_into` keeps up to date, `expand_values` makes one that is differentiable.
`products` says how the three ops of a product are each other's derivatives, `expansion` goes
between kept values and the dense matrix, `optimizer_passes` are steps of optimizers.
"""

from gossamer.ops.training.conv import compact_conv, kernel_settings, why_dense
from gossamer.ops.training.linear import compact_linear, expand_into, expand_values, resident_linear
from gossamer.ops.training.linear_kernels import why_unusable

__all__ = [
    "compact_conv",
    "compact_linear",
    "expand_into",
    "expand_values",
    "kernel_settings",
    "resident_linear",
    "why_dense",
    "why_unusable",
]
