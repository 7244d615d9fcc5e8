# SPDX-License-Identifier: Apache-2.0
"""From chosen units to a smaller model: what is not kept is cut out of the weights."""

from collections.abc import Sequence

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.matrix_layer import matrix_of, set_matrix
from gossamer.nn.slimming import cut_units
from gossamer.pruning.structured.units import find_units


def slim(
    model: nn.Module,
    kept: Sequence[Sequence[int]],
    scales: Sequence[torch.Tensor] | None = None,
) -> nn.Module:
    """Cut all units but `kept` out of `model`, in place, and return it.

    A sub-layer with nothing left still adds its output bias. The result equals the model whose
    other units are masked (`scaled_units`).

    Args:
        model: of a family of `find_units`.
        kept: per group of `find_units(model)`, ascending unit numbers.
        scales: per group [units], folded into the columns of the units' consumer.
    """
    groups = find_units(model)
    if len(kept) != len(groups) or (scales is not None and len(scales) != len(groups)):
        raise InputError(f"kept: one list per group is due, {len(groups)}, got {len(kept)}.")
    with torch.no_grad():
        for number, (group, units) in enumerate(zip(groups, kept, strict=True)):
            if scales is not None:
                matrix = matrix_of(group.consumer)
                factor = scales[number].to(matrix).repeat_interleave(group.width)
                set_matrix(group.consumer, matrix * factor)
            cut_units(group, units)
    return model
