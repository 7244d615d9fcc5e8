# SPDX-License-Identifier: Apache-2.0
"""Masks that keep every weight say nothing: their layers become ordinary ones again."""

import torch
from torch import nn

from gossamer.nn.forms import to_dense
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery import replace_module
from gossamer.nn.surgery.optimizer_state import convert_state, swap_parameter

__all__ = ["drop_full_mask", "drop_full_masks"]


def drop_full_masks(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Make ordinary layers of masked ones that keep every weight, in place."""
    for _, layer in list(sparse_layers(model, "masked")):
        if layer.density == 1.0:
            drop_full_mask(model, layer, optimizer)


def drop_full_mask(
    model: nn.Module, layer: nn.Module, optimizer: torch.optim.Optimizer | None
) -> None:
    """An ordinary layer in the place of a masked one; the optimizer's state moves along."""
    old, dense = layer.get_parameter("weight"), to_dense(layer)
    if optimizer is not None:
        state = convert_state(optimizer, old, lambda tensor: tensor)
        swap_parameter(optimizer, old, dense.get_parameter("weight"), state)
    replace_module(model, layer, dense)
