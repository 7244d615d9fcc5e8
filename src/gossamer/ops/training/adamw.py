# SPDX-License-Identifier: Apache-2.0
"""AdamW in one pass over memory.

One operation of torch after the other takes 9 ns per bfloat16 weight with its low half, and 32 with
moments of 8 bits; this 1 and 2.
"""

from typing import NamedTuple

import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.kernels import active_kernels

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
