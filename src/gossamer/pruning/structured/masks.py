# SPDX-License-Identifier: Apache-2.0
"""Factors on units while a model runs: one value per unit multiplies its columns.

The factor acts on the input of the consumer (output projection, down matrix), so that one hook
serves every family.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gossamer.nn.slimming import UnitGroup


@contextmanager
def scaled_units(groups: Sequence[UnitGroup], factors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, every group's units are multiplied by its factors [units]."""
    handles = [
        group.consumer.register_forward_pre_hook(_scale(group, factor))
        for group, factor in zip(groups, factors, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode and its parameters get no gradient; both are restored."""
    modes = {module: module.training for module in model.modules()}
    needs = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        model.eval()
        for parameter in needs:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for parameter, need in needs.items():
            parameter.requires_grad_(need)


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
