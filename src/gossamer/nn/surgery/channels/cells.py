# SPDX-License-Identifier: Apache-2.0
"""Channels that stand or fall together: `ChannelCells`; and the channels of one tensor: `Value`.

Every channel of every tensor is a cell. What adds two tensors joins their cells, because one of
them cannot lose a channel alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class ChannelCells:
    """All channels of a network, joined into groups."""

    _above: list[int] = field(default_factory=list)
    _fixed: set[int] = field(default_factory=set)

    def new(self, count: int) -> list[int]:
        """So many channels, each alone."""
        first = len(self._above)
        self._above += range(first, first + count)
        return list(range(first, first + count))

    def group(self, cell: int) -> int:
        """The number of a cell's group; it changes when groups are joined."""
        while self._above[cell] != cell:
            self._above[cell] = self._above[self._above[cell]]
            cell = self._above[cell]
        return cell

    def groups(self, cells: Sequence[int]) -> list[int]:
        """Of each cell."""
        return [self.group(cell) for cell in cells]

    def join(self, first: Sequence[int], second: Sequence[int]) -> None:
        """Pair by pair."""
        for one, other in zip(first, second, strict=True):
            low, high = sorted((self.group(one), self.group(other)))
            self._above[high] = low

    def fix(self, cells: Sequence[int]) -> None:
        """Never cut them: something reads them that is not understood."""
        self._fixed.update(cells)

    def fixed(self) -> set[int]:
        """Groups that are never cut."""
        return {self.group(cell) for cell in self._fixed}


@dataclass(frozen=True)
class Value:
    """The channels of one tensor.

    Attributes:
        cells: of each channel, along `axis`.
        zero: which channels are 0 for every input, bool [channels].
        axis: of the channels, counted from the front.
    """

    cells: tuple[int, ...]
    zero: torch.Tensor
    axis: int = 1
