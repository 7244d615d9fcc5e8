# SPDX-License-Identifier: Apache-2.0
"""The patterns that were published, one class each: which pairs attend, and which blocks hold any.

A term answers three questions. `attends(i, j)` is its meaning, token by token. `blocks` gives the
blocks that may hold a pair, directly. `signature` is a number (or several) per block: blocks with
equal ones have equal masks, so that a mask is made once for all blocks that share it.

Positions: query i, key j; `causal` adds j <= i outside of this file. Windows of a causal pattern
look back over their whole length; others look half of it to each side.
"""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gossamer.errors import PatternError
from gossamer.lazy_door import LateModule
from gossamer.patterns.attention.block_list import BLOCK, Bits, Ints, num_blocks

if TYPE_CHECKING:
    import numpy as np
else:  # see block_list
    np = LateModule("numpy")

_LAST = BLOCK - 1


@dataclass(frozen=True)
class Span:
    """What a pattern is laid over: query i stands at position i + offset of the keys' sequence."""

    queries: int
    keys: int
    offset: int
    causal: bool
    head: int

    @property
    def first_queries(self) -> Ints:
        """The position of the first query of each row of blocks."""
        return np.arange(num_blocks(self.queries), dtype=np.int64) * BLOCK + self.offset

    @property
    def first_keys(self) -> Ints:
        """The position of the first key of each column of blocks."""
        return np.arange(num_blocks(self.keys), dtype=np.int64) * BLOCK


Pairs = tuple[Ints, Ints]


class AttentionTerm(ABC):
    """One published pattern: a frozen dataclass whose fields are the numbers of its text."""

    name: ClassVar[str]

    @abstractmethod
    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """Whether queries at positions i attend to keys at j, which broadcast."""

    @abstractmethod
    def blocks(self, grid: Span) -> list[Pairs]:
        """Rows and columns of all blocks that may hold a pair; some may be named twice."""

    @abstractmethod
    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """Numbers that are equal for blocks with equal masks."""

    def check(self) -> None:
        """Raise PatternError for numbers that make no sense."""
        for field, value in vars(self).items():
            if field != "seed" and value < self.least(field):
                raise PatternError(f"{self}: {field} must be at least {self.least(field)}.")

    @staticmethod
    def least(field: str) -> int:
        """The smallest legal value of a field."""
        return 0 if field in ("random", "global_") else 1

    def __str__(self) -> str:
        return self.name


def _band(grid: Span, behind: int, ahead: int) -> Pairs:
    """Blocks with a pair at distance -ahead <= i - j <= behind."""
    first = grid.first_queries
    low = np.maximum(-(-(first - _LAST - behind) // BLOCK), 0)
    high = np.minimum((first + _LAST + ahead) // BLOCK, num_blocks(grid.keys) - 1)
    return _runs(low, high)


def _runs(low: Ints, high: Ints) -> Pairs:
    """Columns low..high of each row."""
    counts = np.maximum(high - low + 1, 0)
    rows = np.repeat(np.arange(len(low)), counts)
    starts = np.cumsum(counts) - counts
    return rows, np.arange(int(counts.sum())) - np.repeat(starts - low, counts)


def _cross(rows: Ints, columns: Ints) -> Pairs:
    return np.repeat(rows, len(columns)), np.tile(columns, len(rows))


def _all_rows(grid: Span) -> Ints:
    return np.arange(num_blocks(grid.queries))


def _all_columns(grid: Span) -> Ints:
    return np.arange(num_blocks(grid.keys))


@dataclass(frozen=True)
class FullTerm(AttentionTerm):
    """Every pair."""

    name: ClassVar[str] = "full"

    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """The rule."""
        return np.ones(np.broadcast_shapes(i.shape, j.shape), dtype=bool)

    def blocks(self, grid: Span) -> list[Pairs]:
        """Blocks that the rule reaches."""
        if grid.causal:
            return [_band(grid, grid.queries + grid.keys + abs(grid.offset), 0)]
        return [_cross(_all_rows(grid), _all_columns(grid))]

    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """What the mask of a block depends on."""
        return []


@dataclass(frozen=True)
class WindowTerm(AttentionTerm):
    """Neighbours: `length` / 2 to each side, or the last `length` tokens if causal (itself counts).

    With a dilation only every so-many-th, over as many times the distance.
    """

    length: int
    dilation: int = 1
    name: ClassVar[str] = "window"

    def _reach(self, grid: Span) -> tuple[int, int]:
        """How far it looks behind and ahead."""
        if grid.causal:
            return (self.length - 1) * self.dilation, 0
        return self.length // 2 * self.dilation, self.length // 2 * self.dilation

    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """The rule."""
        behind, ahead = self._reach(grid)
        near = (i - j <= behind) & (j - i <= ahead)
        return near if self.dilation == 1 else near & ((i - j) % self.dilation == 0)

    def blocks(self, grid: Span) -> list[Pairs]:
        """Blocks that the rule reaches."""
        return [_band(grid, *self._reach(grid))]

    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """What the mask of a block depends on."""
        behind, ahead = self._reach(grid)
        return [np.clip(first_query - first_key, -ahead - BLOCK, behind + BLOCK)]

    def __str__(self) -> str:
        dilated = f",dilation={self.dilation}" if self.dilation != 1 else ""
        return f"window:{self.length}{dilated}"


@dataclass(frozen=True)
class GlobalTerm(AttentionTerm):
    """The first tokens attend to all and are attended to by all (Longformer)."""

    count: int
    name: ClassVar[str] = "global"

    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """The rule."""
        return (i < self.count) | (j < self.count)

    def blocks(self, grid: Span) -> list[Pairs]:
        """Blocks that the rule reaches."""
        rows = _all_rows(grid)
        return [
            _cross(rows, np.arange(min(num_blocks(self.count), num_blocks(grid.keys)))),
            _cross(rows[grid.first_queries < self.count], _all_columns(grid)),
        ]

    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """What the mask of a block depends on."""
        return [np.minimum(first_query, self.count), np.minimum(first_key, self.count)]

    def __str__(self) -> str:
        return f"global:{self.count}"


@dataclass(frozen=True)
class SinksTerm(AttentionTerm):
    """The first tokens are attended to by all (StreamingLLM)."""

    count: int
    name: ClassVar[str] = "sinks"

    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """The rule."""
        return np.broadcast_to(j < self.count, np.broadcast_shapes(i.shape, j.shape))

    def blocks(self, grid: Span) -> list[Pairs]:
        """Blocks that the rule reaches."""
        columns = np.arange(min(num_blocks(self.count), num_blocks(grid.keys)))
        return [_cross(_all_rows(grid), columns)]

    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """What the mask of a block depends on."""
        return [np.minimum(first_key, self.count)]

    def __str__(self) -> str:
        return f"sinks:{self.count}"


@dataclass(frozen=True)
class StridedTerm(AttentionTerm):
    """The last `stride` tokens, and every `stride`-th one (Sparse Transformer)."""

    stride: int
    name: ClassVar[str] = "strided"

    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """The rule."""
        near = (i - j <= self.stride) & (j - i <= self.stride)
        found: Bits = np.logical_or(near, (i - j) % self.stride == 0)
        return found

    def blocks(self, grid: Span) -> list[Pairs]:
        """Blocks that the rule reaches."""
        rows, columns = num_blocks(grid.queries), num_blocks(grid.keys)
        # Diagonals row - column on which a distance is a multiple of the stride.
        diagonals = np.arange(1 - columns, rows, dtype=np.int64)
        distance = diagonals * BLOCK + grid.offset
        hit = (distance + _LAST) // self.stride * self.stride >= distance - _LAST
        if grid.causal:
            hit &= distance + _LAST >= 0
        hits = diagonals[hit]
        low, high = np.maximum(hits, 0), np.minimum(rows - 1, columns - 1 + hits)
        turned, found = _runs(low, high)
        return [_band(grid, self.stride, self.stride), (found, found - hits[turned])]

    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """What the mask of a block depends on."""
        distance = first_query - first_key
        edge = self.stride + BLOCK
        return [np.clip(distance, -edge, edge), distance % self.stride]

    def __str__(self) -> str:
        return f"strided:{self.stride}"


@dataclass(frozen=True)
class FixedTerm(AttentionTerm):
    """The own stretch of `length` tokens, and the last `c` of every one (Sparse Transformer)."""

    length: int
    c: int = 8
    name: ClassVar[str] = "fixed"

    def check(self) -> None:
        """Refuse numbers that make no sense."""
        super().check()
        if self.c > self.length:
            raise PatternError(f"{self}: c must be at most the length {self.length}.")

    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """The rule."""
        summary = j % self.length >= self.length - self.c
        found: Bits = np.logical_or(i // self.length == j // self.length, summary)
        return found

    def blocks(self, grid: Span) -> list[Pairs]:
        """Blocks that the rule reaches."""
        first, keys = grid.first_queries, grid.first_keys
        low = np.maximum(first // self.length * self.length // BLOCK, 0)
        end = ((first + _LAST) // self.length + 1) * self.length - 1
        until_summary = np.maximum(self.length - self.c - keys % self.length, 0)
        stretch = _runs(low, np.minimum(end // BLOCK, num_blocks(grid.keys) - 1))
        if not self.c:  # without summaries: sorted_parts
            return [stretch]
        return [
            stretch,
            _cross(_all_rows(grid), np.flatnonzero(until_summary < BLOCK)),
        ]

    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """What the mask of a block depends on."""
        apart = first_query // self.length - first_key // self.length
        most = BLOCK // self.length + 2
        return [
            first_query % self.length,
            first_key % self.length,
            np.clip(apart, -most, most),
        ]

    def __str__(self) -> str:
        return f"fixed:{self.length},c={self.c}"


@dataclass(frozen=True)
class ChunksTerm(AttentionTerm):
    """The own chunk and the one before, as sorted tokens attend (Reformer)."""

    length: int
    name: ClassVar[str] = "chunks"

    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """The rule."""
        apart = i // self.length - j // self.length
        found: Bits = np.logical_or(apart == 0, apart == 1)
        return found

    def blocks(self, grid: Span) -> list[Pairs]:
        """Blocks that the rule reaches."""
        return [_band(grid, 2 * self.length, self.length)]

    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """What the mask of a block depends on."""
        most = BLOCK // self.length + 3
        apart = first_query // self.length - first_key // self.length
        return [
            first_query % self.length,
            first_key % self.length,
            np.clip(apart, -most, most),
        ]

    def __str__(self) -> str:
        return f"chunks:{self.length}"


@dataclass(frozen=True)
class BigBirdTerm(AttentionTerm):
    """Blocks: neighbours, the first and last ones for all, and some at random (BigBird, ITC).

    Attributes:
        block: tokens of a block.
        window: blocks around the own one, itself included.
        global_: blocks that attend to all and are attended to by all, half of them (rounded up) at
            the beginning, the others at the end.
        random: further blocks of each block of queries, other ones for each head.
        seed: of these.
    """

    block: int = 64
    window: int = 3
    global_: int = 2
    random: int = 3
    seed: int = 0
    name: ClassVar[str] = "bigbird"

    def check(self) -> None:
        """Refuse numbers that make no sense."""
        super().check()
        if self.window % 2 == 0:
            raise PatternError(f"{self}: window counts the own block, and must be odd.")

    def _globals(self, grid: Span) -> Ints:
        total = -(-grid.keys // self.block)
        first = (self.global_ + 1) // 2
        last = np.arange(max(total - self.global_ // 2, 0), total)
        return np.unique(np.concatenate([np.arange(min(first, total)), last]))

    @functools.lru_cache(maxsize=64)  # noqa: B019  (terms are small, and few)
    def _chosen(self, grid: Span) -> Ints:
        """Random key blocks of each block of queries; -1 where there are too few."""
        total = -(-grid.keys // self.block)
        rows = -(-(grid.queries + grid.offset) // self.block)
        chosen = np.full((max(rows, 0), self.random), -1, dtype=np.int64)
        everybody = set(self._globals(grid).tolist())
        for row in range(len(chosen)):
            near = range(row - self.window // 2, row + self.window // 2 + 1)
            limit = min(row, total) if grid.causal else total
            taken = sorted(b for b in everybody.union(near) if 0 <= b < limit)
            found = _sample(limit - len(taken), self.random, (self.seed, grid.head, row))
            for number, place in enumerate(found):
                for block in taken:  # ascending: the place-th of those that are left
                    place += block <= place
                chosen[row, number] = place
        return chosen

    def attends(self, i: Ints, j: Ints, grid: Span) -> Bits:
        """The rule."""
        i, j = np.broadcast_arrays(i // self.block, j // self.block)
        everybody, chosen = self._globals(grid), self._chosen(grid)
        found: Bits = np.isin(i, everybody) | np.isin(j, everybody)
        found = np.logical_or(found, np.abs(i - j) <= self.window // 2)
        for column in range(self.random):
            inside = np.clip(i, 0, max(len(chosen) - 1, 0))
            if len(chosen):
                found = np.logical_or(found, chosen[inside, column] == j)
        return found

    def blocks(self, grid: Span) -> list[Pairs]:
        """Blocks that the rule reaches."""
        total, everybody = -(-grid.keys // self.block), self._globals(grid)
        first = grid.first_queries
        rows, columns = _all_rows(grid), _all_columns(grid)
        wide = self.window // 2 * self.block + self.block
        key_tiles = np.unique(
            np.concatenate(
                [np.zeros(0, dtype=np.int64), *(_tiles(b, self.block) for b in everybody)]
            )
        )
        key_tiles = key_tiles[key_tiles < len(columns)].astype(np.int64)
        low, high = first // self.block, (first + _LAST) // self.block
        is_global = np.zeros(len(first), dtype=bool)
        for block in everybody:
            is_global |= (low <= block) & (block <= high)
        pairs = [_band(grid, wide, wide), _cross(rows, key_tiles)]
        pairs.append(_cross(rows[is_global], columns))
        chosen = self._chosen(grid)
        if self.random and len(chosen):
            query, number = np.nonzero((chosen >= 0) & (chosen < total))
            row_tiles = [_tiles(b - grid.offset / self.block, self.block) for b in query]
            picked = [_tiles(b, self.block) for b in chosen[query, number]]
            for row_tile, column_tile in zip(row_tiles, picked, strict=True):
                inside_rows = row_tile[(row_tile >= 0) & (row_tile < len(rows))]
                pairs.append(_cross(inside_rows, column_tile[column_tile < len(columns)]))
        return pairs

    def signature(self, first_query: Ints, first_key: Ints, grid: Span) -> list[Ints]:
        """What the mask of a block depends on."""
        if self.block % BLOCK == 0 and grid.offset % BLOCK == 0:
            return [self.attends(first_query, first_key, grid).astype(np.int64)]
        return [first_query, first_key]  # no two alike

    def __str__(self) -> str:
        shown = {"block": self.block, "window": self.window, "global": self.global_}
        shown |= {"random": self.random} | ({"seed": self.seed} if self.seed else {})
        return "bigbird:" + ",".join(f"{key}={value}" for key, value in shown.items())


def _tiles(block: Any, size: int) -> Ints:
    """The blocks of the list that a block of `size` tokens touches."""
    first = int(block * size)
    return np.arange(first // BLOCK, (first + size - 1) // BLOCK + 1)


def _sample(total: int, count: int, seeds: tuple[int, ...]) -> list[int]:
    """So many of `total` places, ascending, by a generator that depends on the seeds alone."""
    state = 0
    found: set[int] = set()
    for seed in seeds:
        state = _mixed(state ^ seed)
    # Floyd's way: each step adds one that is not there yet.
    for last in range(max(total - count, 0), max(total, 0)):
        state = _mixed(state)
        place = state % (last + 1)
        found.add(last if place in found else place)
    return sorted(found)


def _mixed(x: int) -> int:
    """A step of splitmix64."""
    most = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & most
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & most
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & most
    return x ^ x >> 31


TERMS: dict[str, type[AttentionTerm]] = {
    term.name: term
    for term in (
        FullTerm,
        WindowTerm,
        GlobalTerm,
        SinksTerm,
        StridedTerm,
        FixedTerm,
        ChunksTerm,
        BigBirdTerm,
    )
}
