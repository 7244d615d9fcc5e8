# SPDX-License-Identifier: Apache-2.0
"""Masks of grown weights: zeros between copies may stay zeros, and noise keeps off them."""

from typing import Final

import torch

from gossamer.errors import InputError, PatternError
from gossamer.patterns import Pattern, Unstructured, parse_pattern
from gossamer.training.growth.plan import GrowthPlan
from gossamer.training.growth.tensors import Axes, Factors, grown_mask, grown_tensor

TILE: Final = 16


def mask_between(
    axes: Axes,
    mask: torch.Tensor | None,
    pattern: Pattern | None,
    plan: GrowthPlan,
    shape: torch.Size,
    generator: torch.Generator,
) -> tuple[torch.Tensor | None, Pattern | None]:
    """The mask of a grown weight and its pattern; None if everything is kept.

    Args:
        axes: of the weight.
        mask: of the old weight; None if it has none.
        pattern: of that mask.
        plan: says how much between the copies is opened.
        shape: of the old weight.
        generator: draws which tiles are opened.
    """
    factors, opened = plan.factors, plan.growth.opened
    between = factors.of(axes.read) > 1 and factors.of(axes.made) > 1
    if mask is None and (opened == 1.0 or not between):
        return None, None
    if axes.layout != "matrix":
        raise InputError(
            "grow: a Conv1D of transformers has no mask, so zeros between its copies cannot be kept"
            " (opened < 1). Call gossamer.nn.conv1d_to_linear(model) before making the optimizer."
        )
    kept = torch.ones(shape, dtype=torch.bool) if mask is None else mask.cpu()
    whole = grown_mask(kept, axes, factors, opened=False)
    free = grown_mask(torch.zeros_like(kept), axes, factors, opened=True)
    if opened < 1.0 and between:
        free &= _some_tiles(whole.shape, opened, generator)
    whole |= free
    wanted = parse_pattern(f"block:{TILE}x{TILE}") if pattern is None else pattern
    return whole, wanted if _obeys(whole, wanted) else Unstructured()


def masked_value(
    numbers: torch.Tensor,
    axes: Axes,
    factors: Factors,
    sigma: float,
    mask: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Values under a mask: noise adds up to zero over the kept places that read one number."""
    value = grown_tensor(numbers, axes, factors, "value")
    kept = mask.to(value.device)
    made, read = factors.of(axes.made) * axes.segments, factors.of(axes.read)
    if sigma and read > 1 and numbers.any():
        blocks = (made, len(value) // made, read, -1)
        open_PORI = kept.reshape(blocks)
        drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
        noise_PORI = drawn.reshape(blocks) * open_PORI
        many_POI = open_PORI.sum(2, keepdim=True).clamp(min=1)
        noise_PORI -= noise_PORI.sum(2, keepdim=True) / many_POI
        size = sigma * float(numbers[numbers != 0].double().std(correction=0))
        value = value + size * (noise_PORI * open_PORI).reshape(value.shape)
    return value * kept


def _some_tiles(shape: torch.Size, share: float, generator: torch.Generator) -> torch.Tensor:
    """A random share of the tiles of a matrix."""
    rows, columns = (-(-size // TILE) for size in shape)
    chosen = torch.rand(rows, columns, generator=generator) < share
    wide = chosen.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)
    return wide[: shape[0], : shape[1]]


def _obeys(mask: torch.Tensor, pattern: Pattern) -> bool:
    try:
        pattern.check_shape((mask.shape[0], mask.shape[1]))
        pattern.validate(mask)
    except PatternError:
        return False
    return True
