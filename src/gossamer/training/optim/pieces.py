# SPDX-License-Identifier: Apache-2.0
"""A parameter, stretch by stretch, in full precision: read, changed by a step, written back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gossamer.nn.layers.parts import DenseHome
from gossamer.training.optim import halves
from gossamer.training.optim.codes import BLOCK, State, StoredMoment
from gossamer.training.optim.dither import offsets

# Where the state keeps the low bits of a master, or a master of its own.
LOW, MASTER = "master_low", "master"
# Elements of a stretch: 256 KiB of float32, whole blocks of 8-bit codes.
_SIZE = 256 * BLOCK


@dataclass(slots=True)
class Stretch:
    """A part of one parameter in full precision, to be changed in place.

    Attributes:
        start: index of its first element, a multiple of 256.
        stop: index after its last element.
        master: the weights, float32 or float64 [n].
        grad: the gradient, of the same dtype [n]; not to be changed.
        moments: of the kinds that were asked for, of the same dtype [n].
    """

    start: int
    stop: int
    master: torch.Tensor
    grad: torch.Tensor
    moments: list[torch.Tensor]


def stretches(
    param: nn.Parameter, state: State, moments: Sequence[StoredMoment] = ()
) -> Iterator[Stretch]:
    """The parameter part by part; each is written back when the next one is asked for.

    Args:
        param: has a gradient.
        state: its state in the optimizer.
        moments: are read, and written back as well.
    """
    if param.grad is None:
        return
    home, numbers = DenseHome.of(param), numbers_of(param)
    weight = numbers.contiguous()
    flat, grad = weight.view(-1), param.grad.reshape(-1)
    for start in range(0, flat.numel(), _SIZE):
        stop = min(start + _SIZE, flat.numel())
        part = flat[start:stop]
        offset: torch.Tensor | float = 0.5
        if needs_dither(state):
            offset = offsets(start, stop - start, int(state["step"]), part.device)
        low = state[LOW].view(-1)[start:stop] if LOW in state else None
        master = state[MASTER].view(-1)[start:stop] if MASTER in state else part
        if low is not None:
            master = halves.join(part, low)
        read = [moment.read(state, start, stop) for moment in moments]
        yield Stretch(start, stop, master, grad[start:stop].to(master.dtype), read)
        for moment, values in zip(moments, read, strict=True):
            moment.write(state, start, values, offset)
        if low is not None:
            is_short = low.dtype is torch.int8
            part[:], low[:] = halves.split_24(master, offset) if is_short else halves.split(master)
        elif MASTER in state:
            part.copy_(halves.rounded(master) if part.dtype is torch.bfloat16 else master)
    if home is not None:
        home.write(weight)
    elif weight is not numbers:
        param.copy_(weight)


def needs_dither(state: State) -> bool:
    """Whether something in the state is rounded to 8 bits."""
    is_short = LOW in state and state[LOW].dtype is torch.int8
    return is_short or any(key.endswith("_exponents") for key in state)


def numbers_of(param: torch.Tensor) -> torch.Tensor:
    """The parameter, or a copy of what it stands for if that lives elsewhere."""
    home = DenseHome.of(param)
    return param.detach() if home is None else home.read()
