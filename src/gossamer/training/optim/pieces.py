# SPDX-License-Identifier: Apache-2.0
"""A parameter, stretch by stretch, in full precision: read, changed by a step, written back.

Rounding loses nothing on average, without random numbers. With 8 bits, an update smaller than half
a step would be rounded away at every step, so that a second moment that decays by 0.1 % per step
stays where it is for ever. A dither rounds it up as often as its fraction says. The offsets are a
low-discrepancy sequence over steps, shifted from element to element: errors do not pile up as those
of random offsets do, a run gives the same bits again, and there is no generator to save.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gossamer.nn.layers.parts import DenseHome
from gossamer.ops.training.optimizer_passes import Dither
from gossamer.training.optim import halves
from gossamer.training.optim.codes import BLOCK, State, StoredMoment

# The plastic number's inverse and its square: the two-dimensional golden ratio.
_PER_ELEMENT = 0.7548776662466927
_PER_STEP = 0.5698402909980532
# Elements of the pattern that is kept; it goes on shifted.
_PERIOD = 65536
_UNITS = 2**22


def offsets(start: int, count: int, step: int, device: torch.device) -> torch.Tensor:
    """Offsets in [0, 1) of elements start .. start + count - 1 at a step, float32."""
    begin = start // _PERIOD * _PERIOD
    pattern = _pattern(-(-(start + count - begin) // _PERIOD), device)
    return pattern[start - begin : start - begin + count].add(_shift(begin, step)).frac_()


def native_dither(count: int, step: int) -> Dither:
    """The same offsets of elements 0 .. count - 1, as native code wants them."""
    shifts = [_shift(begin, step) for begin in range(0, count, _PERIOD)]
    return Dither(_pattern(1, torch.device("cpu")), torch.tensor(shifts))


def _shift(begin: int, step: int) -> float:
    return int((begin * _PER_ELEMENT + step * _PER_STEP) % 1.0 * _UNITS) / _UNITS


@functools.lru_cache(maxsize=8)
def _pattern(periods: int, device: torch.device) -> torch.Tensor:
    """Offsets of the first elements at step 0, in units that float32 adds without rounding."""
    index = torch.arange(periods * _PERIOD, dtype=torch.float64, device=device)
    return index.mul_(_PER_ELEMENT).frac_().mul_(_UNITS).floor_().div_(_UNITS).to(torch.float32)


# Where the state keeps the low bits of a master, or a master of its own.
LOW, MASTER = "master_low", "master"
# What a step with a master of its own and a float32 gradient works in: no state of the run, made
# anew by the next step. The gradient, and the 16-bit copy of values that live in a dense weight.
GRADIENT, ROUNDED = "gradient", "rounded"
SCRATCH = (GRADIENT, ROUNDED)
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
    home = DenseHome.of(param)
    numbers = state[ROUNDED] if ROUNDED in state else numbers_of(param)
    weight = numbers.contiguous()
    flat, grad = weight.view(-1), state.get(GRADIENT, param.grad).reshape(-1)
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
