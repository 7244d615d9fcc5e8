# SPDX-License-Identifier: Apache-2.0
"""Patterns whose pairs lie apart, as two lists of blocks: what is near, and the rest after sorting.

`strided:128` touches half of all blocks of 64 x 64, with one pair in 128. Sorted by their place
within a stride, tokens that attend to each other stand together, and few blocks hold all of them.
The summaries of `fixed:128,c=8` are 8 keys in 128: picked out, they are a sixteenth of the columns.
Both are exact: no pair is in both lists, and the sums of a row are joined by their logarithms.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossamer.lazy_door import LateModule
from gossamer.patterns.attention.block_list import BLOCK, WHOLE, Bits, BlockList, Ints, num_blocks
from gossamer.patterns.attention.terms import (
    AttentionTerm,
    BigBirdTerm,
    FixedTerm,
    Span,
    StridedTerm,
    WindowTerm,
)
from gossamer.patterns.attention.text import AttentionPattern, Masks, parse_attention

if TYPE_CHECKING:
    import numpy as np
else:  # see block_list
    np = LateModule("numpy")

__all__ = ["SortedParts", "sorted_parts"]

# Two calls and what joins them are worth it from here on.
_GAIN = 2


@dataclass(frozen=True, eq=False)
class SortedParts:
    """A pattern in two lists.

    Attributes:
        near: blocks of the tokens as they stand.
        far: blocks of the tokens that `queries` and `keys` pick, in that order.
        queries: int64, the query at each place of `far`; None: as they stand.
        keys: int64, the key at each place of `far`.
    """

    near: BlockList
    far: BlockList
    queries: "Ints | None"
    keys: "Ints"


@functools.lru_cache(maxsize=32)
def sorted_parts(
    name: str, queries: int, keys: int, heads: int, causal: bool, offset: int | None
) -> SortedParts | None:
    """The two lists of a pattern, where they hold far fewer blocks than one; else None.

    Args:
        name: its text.
        queries: how many there are.
        keys: how many there are; None is given back if they differ.
        heads: of queries.
        causal: as in `AttentionPattern.blocks`.
        offset: the same.
    """
    pattern = parse_attention(name)
    terms = pattern.groups[0]
    apart = [term for term in terms if isinstance(term, StridedTerm | FixedTerm)]
    varies = any(isinstance(term, BigBirdTerm) and term.random for term in terms)
    if len(pattern.groups) > 1 or len(apart) != 1 or varies or queries != keys or offset:
        return None
    grid = Span(queries, keys, 0, causal, 0)
    term = apart[0]
    near_term, order, gain = (_of_stride if isinstance(term, StridedTerm) else _of_fixed)(
        term, grid
    )
    if gain < _GAIN:
        return None
    near = AttentionPattern((tuple(near_term if one is term else one for one in terms),))

    def is_far(i: Ints, j: Ints) -> Bits:
        found = term.attends(i, j, grid) & ~near.attends(i, j, grid, 1)
        return found & (j <= i) if causal else found

    is_sorted = isinstance(term, StridedTerm)
    rows = order if is_sorted else np.arange(queries, dtype=np.int64)
    # Tokens attend to those of their own group, which stand together; without a sort all are one.
    size = vars(term)["stride"] if is_sorted else 1
    return SortedParts(
        near.blocks(queries, keys, heads=1, causal=causal),
        _far_list(rows, order, size, is_far, causal),
        rows if is_sorted else None,
        order,
    )


def _of_stride(term: AttentionTerm, grid: Span) -> tuple[AttentionTerm, Ints, float]:
    """The near part, the tokens by their place within a stride, and how many blocks that saves."""
    stride: int = vars(term)["stride"]
    length = stride + 1 if grid.causal else 2 * stride
    place = np.arange(grid.keys, dtype=np.int64)
    order = np.argsort(place % stride, kind="stable")
    row = num_blocks(grid.keys)
    one = row * min(1.0, 2 * BLOCK / stride)
    two = 2 * (2 * stride / BLOCK + 2) + 2 * (grid.keys / stride / BLOCK + 2)
    return WindowTerm(length), order, one / two


def _of_fixed(term: AttentionTerm, grid: Span) -> tuple[AttentionTerm, Ints, float]:
    """The own stretch, the summaries, and how many blocks picking them saves."""
    length, c = vars(term)["length"], vars(term)["c"]
    place = np.arange(grid.keys, dtype=np.int64)
    order = place[place % length >= length - c]
    row = num_blocks(grid.keys)
    one = row * min(1.0, (BLOCK + c) / length)
    two = 2 * (length / BLOCK + 1) + num_blocks(len(order))
    return dataclasses.replace(term, c=0), order, one / two  # type: ignore[type-var]


def _far_list(
    queries: Ints, keys: Ints, groups: int, is_far: Callable[[Ints, Ints], Bits], causal: bool
) -> BlockList:
    """The blocks of picked tokens that hold a pair; only tokens of one group make pairs."""
    masks = Masks()
    found: list[tuple[int, int, int]] = []
    columns = [keys[at : at + BLOCK] for at in range(0, len(keys), BLOCK)]
    first = np.array([column.min() for column in columns])
    low, high = (np.array([edge(c % groups) for c in columns]) for edge in (np.min, np.max))
    for row, at in enumerate(range(0, len(queries), BLOCK)):
        own = queries[at : at + BLOCK]
        place = own % groups
        reached = (low <= place.max()) & (high >= place.min())
        if causal:
            reached &= first <= own.max()
        for column in np.flatnonzero(reached).tolist():
            key = columns[column]
            mask = np.zeros((BLOCK, BLOCK), dtype=bool)
            mask[: len(own), : len(key)] = is_far(own[:, None], key)
            if mask.any():
                found.append((row, column, WHOLE if mask.all() else masks.add(mask)))
    lists = np.array(found, dtype=np.int64).reshape(-1, 3)
    return BlockList.of(
        len(queries), len(keys), [0], [(lists[:, 0], lists[:, 1], lists[:, 2])], masks.array()
    )
