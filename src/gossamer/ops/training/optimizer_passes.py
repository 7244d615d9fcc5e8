# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers in one pass over memory each.

`adamw_step`: one operation of torch after the other takes 9 ns per bfloat16 weight with its low
half, and 32 with moments of 8 bits; this 1 and 2.
`absorb` adds a gradient to the sum of those before it, and measures both; one operation of torch
after the other reads and writes the same in four passes.

Legend: R blocks, N elements of a block.
"""

from typing import NamedTuple

import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address, runs_native
from gossamer.ops.kernels import active_kernels

__all__ = [
    "Dither",
    "NativeMoment",
    "absorb",
    "adamw_step",
]

_WHERE = "AdamW"
_LOW_BITS = {torch.int8: 8, torch.int16: 16}


class NativeMoment(NamedTuple):
    """A running average: float32, or codes of 8 bits with an exponent for every 256 of them.

    Attributes:
        entries: float32 or, with exponents, int8 (mean) and uint8 (square).
        exponents: int8 [ceil(n / 256)].
    """

    entries: torch.Tensor
    exponents: torch.Tensor | None = None


class Dither(NamedTuple):
    """What is added before rounding down to 8 bits: pattern of i % 65536, shift of i // 65536."""

    pattern: torch.Tensor
    shifts: torch.Tensor


def adamw_step(
    weight: torch.Tensor,
    low: torch.Tensor | None,
    grad: torch.Tensor,
    mean: NativeMoment,
    square: NativeMoment,
    settings: tuple[float, float, float, float, float],
    number: int,
    dither: Dither | None = None,
) -> None:
    """Update weight, low bits, mean and square in place.

    Args:
        weight: float32, or bfloat16 with `low`.
        low: int16 or int8, the lower bits of the float32 master of each weight.
        grad: of the dtype of the weight.
        mean: of gradients.
        square: mean of their squares.
        settings: learning rate, beta1, beta2, eps, weight decay.
        number: of this step, from 1.
        dither: needed where `low` is int8 or moments are codes.
    """
    pattern, shifts = dither or (None, None)
    _native.adamw_step(
        address(weight, _WHERE),
        address(low, _WHERE),
        0 if low is None else _LOW_BITS[low.dtype],
        address(grad, _WHERE),
        address(mean.entries, _WHERE),
        address(mean.exponents, _WHERE),
        address(square.entries, _WHERE),
        address(square.exponents, _WHERE),
        address(pattern, _WHERE),
        address(shifts, _WHERE),
        weight.numel(),
        *settings,
        number,
        active_kernels(),
    )


def absorb(
    gradient_RN: torch.Tensor, held_RN: torch.Tensor, fresh_R: torch.Tensor, scores_R: torch.Tensor
) -> None:
    """Add a gradient to what is held.

    A few blocks at a time: where one of them has a number that is not finite none is changed, and
    their scores become those of the gradient.

    Args:
        gradient_RN: what is added.
        held_RN: to what; changed in place.
        fresh_R: becomes the mean square of the gradient in each block.
        scores_R: becomes the mean square of what is held afterwards.
    """
    tensors = (gradient_RN, held_RN, fresh_R, scores_R)
    if all(t.dtype is torch.float32 for t in tensors) and runs_native(*tensors):
        _native.absorb(
            address(gradient_RN, "absorb"),
            address(held_RN, "absorb"),
            held_RN.shape[0],
            held_RN.shape[1],
            address(fresh_R, "absorb"),
            address(scores_R, "absorb"),
            active_kernels(),
        )
    else:
        absorb_by_torch(*tensors)


def absorb_by_torch(
    gradient_RN: torch.Tensor, held_RN: torch.Tensor, fresh_R: torch.Tensor, scores_R: torch.Tensor
) -> None:
    """The same for any dtype and device."""
    num_blocks, block_size = held_RN.shape
    together = _native.absorbed_together(block_size)
    for start in range(0, num_blocks, together):
        span = slice(start, min(start + together, num_blocks))
        gradient = gradient_RN[span].to(held_RN.dtype)
        torch.linalg.vector_norm(gradient, dim=1, out=fresh_R[span])
        if torch.isfinite(fresh_R[span].sum()):
            held_RN[span].add_(gradient)
            torch.linalg.vector_norm(held_RN[span], dim=1, out=scores_R[span])
        else:
            scores_R[span] = fresh_R[span]
    scores_R.square_().div_(block_size)
    fresh_R.square_().div_(block_size)
