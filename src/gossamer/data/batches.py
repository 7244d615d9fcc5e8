# SPDX-License-Identifier: Apache-2.0
"""Batches by number: the data position of a run is one integer.

Batch k is a function of the seed and k alone, so a resumed run reads exactly what the killed one
would have read, and no generator but its own is drawn from.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from gossamer.errors import InputError


class Batches(Protocol):
    """An endless sequence of batches; `len` of them make an epoch."""

    def __len__(self) -> int:
        """Batches in an epoch."""

    def __getitem__(self, number: int) -> Any:
        """Batch `number`, counted from 0 through all epochs; always the same one."""


@runtime_checkable
class Divisible(Protocol):
    """A batch that is no tree of tensors and says itself how its samples are shared out."""

    def __len__(self) -> int:
        """Samples."""

    def part(self, index: int, count: int) -> Any:
        """Part number `index` of `count` equal ones, a batch again."""


class ShuffledBatches:
    """Samples in an order that is drawn anew in every epoch.

    Args:
        num_samples: samples in the data.
        size: samples in a batch; the last, smaller batch of an epoch is left out.
        seed: decides all orders.
        take: int64 indices [size] -> batch.
    """

    def __init__(
        self, num_samples: int, size: int, seed: int, take: Callable[[torch.Tensor], Any]
    ) -> None:
        if size < 1 or num_samples < size:
            raise InputError(
                f"data: {num_samples} samples do not make one batch of {size}. Give more data, or"
                " a smaller batch."
            )
        self._num_samples, self._size, self._seed, self._take = num_samples, size, seed, take
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return self._num_samples // self._size

    def __getitem__(self, number: int) -> Any:
        epoch, place = divmod(number, len(self))
        if epoch != self._epoch:
            self._order = self._draw(self._num_samples, generator_of(self._seed, epoch))
            self._epoch = epoch
        return self._take(self._order[place * self._size : (place + 1) * self._size])

    def _draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """What `take` gets in one epoch, in its order."""
        return torch.randperm(count, generator=generator)


class RepeatedBatches:
    """Given batches, in their order, again and again."""

    def __init__(self, batches: list[Any]) -> None:
        if not batches:
            raise InputError("data: there is no batch to train on.")
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> Any:
        return self._batches[number % len(self._batches)]


def generator_of(seed: int, *numbers: int) -> torch.Generator:
    """A generator of its own for (seed, numbers), unlike that of any neighbour."""
    mixed = seed % 2**64
    for number in numbers:
        # splitmix64: neighbouring seeds give unrelated streams.
        mixed = (mixed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return torch.Generator().manual_seed(mixed % 2**63)
