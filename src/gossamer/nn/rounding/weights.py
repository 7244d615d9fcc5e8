# SPDX-License-Identifier: Apache-2.0
"""Weights rounded to int8, int4 or bf16, where they stay float: files then hold them so.

The grids are those of the kernels (`formats/grid/`), so `compile(precision="int8")`, or "int4"
for few tokens, computes with the very weights that were rounded here. Masks are respected.
"int4_offset" has a scale and an offset for 32 weights, for layers without a mask: the decoder runs
them as int4. "bf16" halves the file of a layer without a mask; it is computed with as float32.
"""

from typing import Literal

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.formats.grid import Grid, int4_grid, offsets_grid, row_grid
from gossamer.nn.layer_weights import density_of, weight_of
from gossamer.nn.layers import CompactWeight, MaskedWeight
from gossamer.ops.training.expansion import gather

Rounding = Literal["int8", "int4", "int4_offset", "bf16"]
ROUNDINGS: tuple[Rounding, ...] = ("int8", "int4", "int4_offset", "bf16")
# Rows of a table are looked up, not multiplied: short spans cost bytes only.
_TABLE_SPAN = 32
_TABLES = (nn.Embedding, nn.EmbeddingBag)


def can_round(layer: nn.Module) -> bool:
    """Whether `round_layer` takes it."""
    return isinstance(layer, MaskedWeight | CompactWeight) or type(layer) in (
        nn.Linear,
        nn.Conv2d,
        *_TABLES,
    )


@torch.no_grad()
def round_layer(layer: nn.Module, to: Rounding) -> None:
    """Put the weight of a Linear, Conv2d or table on the grid of `to`, in place.

    Raises:
        InputError: another layer, a weight that is not float32, or not finite; "int4_offset" or
            "bf16" of a layer with a mask.
    """
    if to not in ROUNDINGS:
        raise InputError(f"rounding: must be one of {', '.join(ROUNDINGS)}, got {to!r}.")
    has_mask = isinstance(layer, MaskedWeight | CompactWeight)
    if to == "int4_offset" and has_mask:
        raise InputError(
            "rounding: int4_offset is for layers without a mask, because zero is not on its grid."
            " Use int4."
        )
    if to == "bf16" and has_mask:
        raise InputError(
            "rounding: bf16 is for layers without a mask; files hold kept values in bf16 if they"
            " are in bf16. Use int8, or layer.to(torch.bfloat16)."
        )
    if not can_round(layer):
        raise InputError(f"rounding: a {type(layer).__name__} is no Linear, Conv2d or table.")
    if isinstance(layer, CompactWeight):
        layer.take_back_values()
    elif layer._parameters["weight"] is None:
        raise InputError(f"rounding: this {type(layer).__name__} has no weight of its own.")
    weight = weight_of(layer)
    if weight.dtype is not torch.float32:
        raise InputError(
            f"rounding: weights must be float32, got {weight.dtype}. Call model.float() first."
        )
    if to == "bf16":
        rounded = weight.bfloat16()
    else:
        rounded = _grid(layer, weight, to).rounded(weight.flatten(1)).view_as(weight)
    if isinstance(layer, CompactWeight):
        layer.values.copy_(gather(rounded.flatten(1), layer.mask()))
        layer.refresh()
    else:
        layer.get_parameter("weight").copy_(rounded)


def _grid(layer: nn.Module, weight: torch.Tensor, to: Rounding) -> Grid:
    num_columns = weight.shape[1:].numel()
    if to == "int8":
        return row_grid(num_columns)
    if to == "int4_offset":
        return offsets_grid()
    if isinstance(layer, _TABLES):
        return Grid(4, _TABLE_SPAN)
    # `compile` packs an ordinary layer by its exact zeros, if they are many.
    return int4_grid(num_columns, density_of(layer))
