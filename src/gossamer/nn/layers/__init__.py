# SPDX-License-Identifier: Apache-2.0
"""The layers of each kind in the forms that are trained.

A masked layer has a dense Parameter and a mask that may move: `MaskedLinear`, `MaskedConv2d` and,
in attention, `MaskedOutProj`, all of them `MaskedWeight`s. A compact layer has its kept values for
a Parameter: `Linear` and `Conv2d`, both `CompactWeight`s, which multiply in one of the `Mode`s.
`parts` has what they share, `stand_in` what layers without a dense weight answer.
"""

from gossamer.nn.layers.compact import CompactWeight, Mode
from gossamer.nn.layers.conv2d import Conv2d
from gossamer.nn.layers.linear import Linear
from gossamer.nn.layers.masked import MaskedConv2d, MaskedLinear, MaskedOutProj, MaskedWeight

__all__ = [
    "CompactWeight",
    "Conv2d",
    "Linear",
    "MaskedConv2d",
    "MaskedLinear",
    "MaskedOutProj",
    "MaskedWeight",
    "Mode",
]
