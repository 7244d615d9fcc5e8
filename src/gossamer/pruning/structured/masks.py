# SPDX-License-Identifier: Apache-2.0
"""Factors on units while a model runs: one value per unit multiplies its columns.

The factor acts on the input of the consumer (output projection, down matrix), so that one hook
serves every family.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from gossamer.nn.surgery.slimming import UnitGroup
from gossamer.pruning.calibration import hooked


def scaled_units(
    groups: Sequence[UnitGroup], factors: Sequence[torch.Tensor]
) -> AbstractContextManager[None]:
    """Inside, every group's units are multiplied by its factors [units]."""
    return hooked(
        [
            group.consumer.register_forward_pre_hook(_scale(group, factor))
            for group, factor in zip(groups, factors, strict=True)
        ]
    )


def mask_factors(groups: Sequence[UnitGroup], kept: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """One for kept units, zero for the others."""
    factors = []
    for group, units in zip(groups, kept, strict=True):
        weight = next(group.consumer.parameters())
        factor = torch.zeros(group.count, dtype=weight.dtype, device=weight.device)
        factor[list(units)] = 1
        factors.append(factor)
    return factors


def _scale(group: UnitGroup, factor: torch.Tensor) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0] * factor.repeat_interleave(group.width), *args[1:])

    return hook
