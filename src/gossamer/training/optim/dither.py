# SPDX-License-Identifier: Apache-2.0
"""Rounding that loses nothing on average, without random numbers.

With 8 bits, an update smaller than half a step would be rounded away at every step, so that a
second moment that decays by 0.1 % per step stays where it is for ever. A dither rounds it up as
often as its fraction says. The offsets are a low-discrepancy sequence over steps, shifted from
element to element: errors do not pile up as those of random offsets do, a run gives the same bits
again, and there is no generator to save.
"""

import functools

import torch

from gossamer.ops.training.optimizer_passes import Dither

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
