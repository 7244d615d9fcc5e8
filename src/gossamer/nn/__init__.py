# SPDX-License-Identifier: Apache-2.0
"""Modules that hold sparse weights: masked while the mask moves, compact once it is fixed."""

from gossamer.nn.layers import (
    CompactWeight,
    Conv2d,
    Linear,
    MaskedConv2d,
    MaskedLinear,
    MaskedOutProj,
    MaskedWeight,
    Mode,
)
from gossamer.nn.surgery import (
    attention_outputs,
    disable_fast_paths,
    inherit_hooks,
    replace_module,
    unchanged_on_error,
)
from gossamer.nn.surgery.slimming import conv1d_to_linear

__all__ = [
    "CompactWeight",
    "Conv2d",
    "Linear",
    "MaskedConv2d",
    "MaskedLinear",
    "MaskedOutProj",
    "MaskedWeight",
    "Mode",
    "attention_outputs",
    "conv1d_to_linear",
    "disable_fast_paths",
    "inherit_hooks",
    "replace_module",
    "unchanged_on_error",
]
