# SPDX-License-Identifier: Apache-2.0
"""Batches of a click log by number, shuffled within bounds: any file, some memory.

In every epoch blocks of neighbouring rows get a new order; as many of them as fit into a window are
read together, and the rows of a window are shuffled. What batch k holds follows from the seed and k
alone. A log that fits into one window is shuffled as a whole.
"""

import numpy as np
import torch

from gossamer.data.batches import generator_of
from gossamer.data.clicks.cache import PartRows
from gossamer.data.clicks.rows import Array, ClickRows
from gossamer.errors import InputError

# Rows that are read together: some 100 kB of a log like Criteo's.
_BLOCK = 1024


class ClickBatches:
    """Batches of `ClickRows`.

    Args:
        rows: of the training part.
        size: rows in a batch; the last, smaller batch of an epoch is left out.
        seed: decides all orders.
        window: rows that are held in memory and shuffled; at least a batch.
    """

    def __init__(self, rows: PartRows, size: int, seed: int, window: int) -> None:
        if len(rows) < size:
            raise InputError(
                f"data: {len(rows)} rows to train on do not make one batch of {size}. Give more"
                " data, or a smaller batch."
            )
        self._rows, self._size, self._seed = rows, size, seed
        # Whole batches, so that no batch lies in two windows.
        self._window = max(window // size, 1) * size
        self._held = (-1, -1)
        self._shuffled: ClickRows | None = None

    def __len__(self) -> int:
        return len(self._rows) // self._size

    def __getitem__(self, number: int) -> ClickRows:
        epoch, place = divmod(number, len(self))
        window, first = divmod(place * self._size, self._window)
        if self._held != (epoch, window) or self._shuffled is None:
            self._shuffled = self._read(epoch, window)
            self._held = (epoch, window)
        return self._shuffled.take(np.arange(first, first + self._size))

    def _read(self, epoch: int, window: int) -> ClickRows:
        """The rows of one window, shuffled."""
        pieces = self._pieces(epoch, window)
        rows = ClickRows.joined([self._rows.block(begin, end) for begin, end in pieces])
        order = torch.randperm(len(rows), generator=generator_of(self._seed, epoch, window))
        return rows.take(order.numpy())

    def _pieces(self, epoch: int, window: int) -> list[tuple[int, int]]:
        """Parts of blocks that make up a window."""
        count = len(self._rows)
        blocks = -(-count // _BLOCK)
        order: Array = torch.randperm(blocks, generator=generator_of(self._seed, epoch)).numpy()
        sizes = np.minimum((order + 1) * _BLOCK, count) - order * _BLOCK
        ends = np.cumsum(sizes)
        begin, end = window * self._window, min((window + 1) * self._window, count)
        pieces = []
        first = int(np.searchsorted(ends, begin, side="right"))
        for place in range(first, blocks):
            start = int(ends[place] - sizes[place])
            if start >= end:
                break
            shift = int(order[place]) * _BLOCK - start
            pieces.append((max(begin, start) + shift, min(end, int(ends[place])) + shift))
        return pieces
