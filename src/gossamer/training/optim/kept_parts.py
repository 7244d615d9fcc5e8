# SPDX-License-Identifier: Apache-2.0
"""Parts of a parameter that a step must leave as they are, with their moments.

Numbers are copied and put back. Codes of 8 bits mean nothing without the exponent of their block,
which follows its largest entry: they are read as numbers, and their blocks are coded again around
them. Exponents are whole, so neither they nor their neighbours change by that, unless one is so
much smaller than another that no code is low enough (`codes.py`).
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from gossamer.training.optim.codes import BLOCK, State, StoredMoment, num_blocks

__all__ = ["keep_part"]


def keep_part(param: nn.Parameter, state: State, part: slice) -> Iterator[Callable[[], None]]:
    """Copies of what a step would change in `part`; each result puts one of them back.

    Args:
        param: the part is a range of its first dimension.
        state: of the parameter in its optimizer.
        part: with a start and a stop.
    """
    yield _keep_numbers(param.detach()[part])
    for key, value in state.items():
        if not isinstance(value, torch.Tensor) or value.shape != param.shape:
            continue
        moment = StoredMoment(key, signed=value.dtype is torch.int8)
        if moment.arrays(state).exponents is None:
            yield _keep_numbers(value[part])
        else:
            width = value[0].numel()
            yield _keep_codes(moment, state, part.start * width, part.stop * width)


def _keep_numbers(place: torch.Tensor) -> Callable[[], None]:
    numbers = place.clone()

    def put_back() -> None:
        place.copy_(numbers)

    return put_back


def _keep_codes(moment: StoredMoment, state: State, start: int, stop: int) -> Callable[[], None]:
    first = start // BLOCK * BLOCK
    last = min(num_blocks(stop) * BLOCK, state[moment.key].numel())
    inside = slice(start - first, stop - first)
    numbers = moment.read(state, first, last)[inside].clone()

    def put_back() -> None:
        values = moment.read(state, first, last)
        values[inside] = numbers
        moment.write(state, first, values, 0.5)

    return put_back
