# SPDX-License-Identifier: Apache-2.0
"""Rounding that loses nothing on average, without random numbers.

With 8 bits, an update smaller than half a step would be rounded away at every step, so that a
second moment that decays by 0.1 % per step stays where it is for ever. A dither rounds it up as
often as its fraction says. The offsets are a low-discrepancy sequence over steps, shifted from
element to element: errors do not pile up as those of random offsets do, a run gives the same bits
again, and there is no generator to save.
"""

import torch

# The plastic number's inverse and its square: the two-dimensional golden ratio.
_PER_ELEMENT = 0.7548776662466927
_PER_STEP = 0.5698402909980532


def offsets(start: int, count: int, step: int, device: torch.device) -> torch.Tensor:
    """Offsets in [0, 1) of elements start .. start + count - 1 at a step, float32."""
    index = torch.arange(start, start + count, dtype=torch.float64, device=device)
    shifted = index.mul_(_PER_ELEMENT).add_(step * _PER_STEP % 1.0)
    return shifted.frac_().to(torch.float32).clamp_(max=1 - 2**-24)
