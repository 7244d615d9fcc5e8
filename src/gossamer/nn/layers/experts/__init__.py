# SPDX-License-Identifier: Apache-2.0
"""Linear layers of several experts, each of which multiplies the tokens that are sent to it.

`GroupedLinear` is the ordinary layer, `MaskedExperts` the one with a mask and `Experts` the compact
one. All are called with tokens sorted by expert and the number of tokens of each. Their weight is
one matrix: the rows of the experts, behind one another. So masks, patterns, formats and optimizers
see what they know, and experts may keep different numbers of weights. `check_tiles` refuses
patterns whose tiles would lie across two experts, and `some_experts` cuts a layer.
"""

from gossamer.nn.layers.experts.compact import Experts
from gossamer.nn.layers.experts.grouped import (
    ExpertSizes,
    GroupedLinear,
    MaskedExperts,
    check_tiles,
)
from gossamer.nn.layers.experts.parts import some_experts

__all__ = [
    "ExpertSizes",
    "Experts",
    "GroupedLinear",
    "MaskedExperts",
    "check_tiles",
    "some_experts",
]
