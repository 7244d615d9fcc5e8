# SPDX-License-Identifier: Apache-2.0
"""Weights and activations on the grids of the integer kernels.

`round_layer` rounds a weight for good. The others round in forward and pass the gradient through,
so that a model can be trained to be rounded.
"""

from gossamer.nn.rounding.fake_quant import (
    best_scale,
    rounded_activations,
    rounded_by_scale,
    rounded_values,
    rounded_weight,
)
from gossamer.nn.rounding.weights import ROUNDINGS, can_round, round_layer

__all__ = [
    "ROUNDINGS",
    "best_scale",
    "can_round",
    "round_layer",
    "rounded_activations",
    "rounded_by_scale",
    "rounded_values",
    "rounded_weight",
]
