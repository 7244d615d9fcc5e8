# SPDX-License-Identifier: Apache-2.0
"""A parameter, stretch by stretch, in full precision: read, changed by a step, written back."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gossamer.nn.dense_home import DenseHome
from gossamer.training.optim import halves
from gossamer.training.optim.dither import offsets
from gossamer.training.optim.state_checks import LOW, MASTER


class Piece:
    """A stretch of one parameter in full precision, to be changed in place.

    Attributes:
        start: index of its first element, a multiple of 256.
        stop: index after its last element.
        master: the weights, float32 or float64 [n].
        grad: the gradient, of the same dtype [n]; not to be changed.
        offset: for rounding to 8 bits, in [0, 1).
    """

    __slots__ = ("grad", "master", "offset", "start", "stop")

    def __init__(
        self,
        start: int,
        stop: int,
        master: torch.Tensor,
        grad: torch.Tensor,
        offset: torch.Tensor | float,
    ) -> None:
        self.start, self.stop = start, stop
        self.master, self.grad, self.offset = master, grad, offset


def pieces(
    param: nn.Parameter, state: dict[str, Any], size: int, needs_dither: bool
) -> Iterator[Piece]:
    """Read, hand out and write back stretches of `size` elements."""
    if param.grad is None:
        return
    home, numbers = DenseHome.of(param), numbers_of(param)
    weight = numbers.contiguous()
    flat, grad = weight.view(-1), param.grad.reshape(-1)
    step = int(state["step"])
    for start in range(0, flat.numel(), size):
        stop = min(start + size, flat.numel())
        part = flat[start:stop]
        offset: torch.Tensor | float = 0.5
        if needs_dither:
            offset = offsets(start, stop - start, step, part.device)
        low = state[LOW].view(-1)[start:stop] if LOW in state else None
        if low is not None:
            master = halves.join(part, low)
        else:
            master = state[MASTER].view(-1)[start:stop] if MASTER in state else part
        yield Piece(start, stop, master, grad[start:stop].to(master.dtype), offset)
        if low is not None:
            _write_halves(part, low, master, offset)
        elif MASTER in state:
            part.copy_(halves.rounded(master) if part.dtype is torch.bfloat16 else master)
    if home is not None:
        home.write(weight)
    elif weight is not numbers:
        param.copy_(weight)


def numbers_of(param: torch.Tensor) -> torch.Tensor:
    """The parameter, or a copy of what it stands for if that lives elsewhere."""
    home = DenseHome.of(param)
    return param.detach() if home is None else home.read()


def _write_halves(
    part: torch.Tensor, low: torch.Tensor, master: torch.Tensor, offset: torch.Tensor | float
) -> None:
    if low.dtype is torch.int8:
        new_part, new_low = halves.split_24(master, offset)
    else:
        new_part, new_low = halves.split(master)
    part.copy_(new_part)
    low.copy_(new_low)
