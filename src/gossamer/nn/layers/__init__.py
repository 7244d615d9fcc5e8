# SPDX-License-Identifier: Apache-2.0
"""The layers of each kind in the forms that are trained, and what they share.

`SparseLayer` is the base of all: kind, form, `matrix()`. A masked layer has a dense Parameter and a
mask that may move; a compact one has its kept values for a Parameter.
"""

from gossamer.nn.layers.compact import CompactWeight, Mode
from gossamer.nn.layers.conv2d import Conv2d
from gossamer.nn.layers.linear import Linear
from gossamer.nn.layers.masked import MaskedConv2d, MaskedLinear, MaskedOutProj, MaskedWeight
from gossamer.nn.layers.parts import SparseLayer

__all__ = [
    "CompactWeight",
    "Conv2d",
    "Linear",
    "MaskedConv2d",
    "MaskedLinear",
    "MaskedOutProj",
    "MaskedWeight",
    "Mode",
    "SparseLayer",
]
