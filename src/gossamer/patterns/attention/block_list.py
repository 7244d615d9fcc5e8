# SPDX-License-Identifier: Apache-2.0
"""Blocks of 64 queries x 64 keys that attention computes, as CSR, and its transpose.

A block is kept whole, or in part: it then names a mask of 64 x 64 bits. Masks that are equal are
stored once; a window of any length has a handful of them.

Legend: L lists, R rows of blocks, B blocks of all lists, M masks.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gossamer.errors import PatternError
from gossamer.lazy_door import LateModule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bits = NDArray[np.bool_]
else:  # recipes read the text of patterns, and compute nothing
    np, Ints, Bits = LateModule("numpy"), Any, Any

BLOCK = 64
WHOLE = -1


def num_blocks(tokens: int) -> int:
    """Blocks that cover so many tokens."""
    return -(-tokens // BLOCK)


@dataclass(frozen=True, eq=False)
class BlockRows:
    """One direction: the blocks of each row of each list lie together.

    Attributes:
        starts: int64 [L * R + 1].
        columns: int32 [B].
        masks: int32 [B], the number of a mask; -1 = all pairs.
    """

    starts: "NDArray[np.int64]"
    columns: "NDArray[np.int32]"
    masks: "NDArray[np.int32]"


@dataclass(frozen=True, eq=False)
class BlockList:
    """Which blocks each head computes. Heads with the same blocks share a list.

    Attributes:
        queries: how many there are.
        keys: how many there are.
        of_head: int32, the list of each head.
        by_query: the key blocks of each row of queries, ascending.
        mask_bits: uint64 [M, 2, 64]: for each query bits over keys, for each key bits over queries.
    """

    queries: int
    keys: int
    of_head: "NDArray[np.int32]"
    by_query: BlockRows
    mask_bits: "NDArray[np.uint64]"

    @classmethod
    def of(
        cls,
        queries: int,
        keys: int,
        of_head: list[int],
        lists: list[tuple[Ints, Ints, Ints]],
        masks: Bits,
    ) -> "BlockList":
        """A list from blocks in the order of rows and columns.

        Args:
            queries: how many there are.
            keys: how many there are.
            of_head: the list of each head.
            lists: rows, columns and numbers of masks (-1 = whole) of the blocks of each list.
            masks: [M, 64, 64], query by key.
        """
        rows = num_blocks(queries)
        counts = [np.bincount(row, minlength=rows)[:rows] for row, _, _ in lists]
        starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
        columns = np.concatenate([column for _, column, _ in lists]).astype(np.int32)
        numbers = np.concatenate([number for _, _, number in lists]).astype(np.int32)
        both = np.stack([pack_rows(masks), pack_rows(masks.transpose(0, 2, 1))], axis=1)
        return cls(
            queries,
            keys,
            np.asarray(of_head, dtype=np.int32),
            BlockRows(starts, columns, numbers),
            np.ascontiguousarray(both),
        )

    @cached_property
    def masks(self) -> Bits:
        """[M + 1, 64, 64], query by key; the last one, number -1, is all pairs."""
        every = np.ones((1, BLOCK, BLOCK), dtype=bool)
        return np.concatenate([unpack_rows(self.mask_bits[:, 0]), every])

    @property
    def num_lists(self) -> int:
        """Lists that differ."""
        return int(self.of_head.max()) + 1 if len(self.of_head) else 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return num_blocks(self.queries), num_blocks(self.keys)

    @cached_property
    def rows(self) -> Ints:
        """The row of each block, counted over lists: list * R + row."""
        counts = np.diff(self.by_query.starts)
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def by_key(self) -> BlockRows:
        """The query blocks of each row of keys, ascending: what the gradients of keys walk over."""
        rows, columns = self.shape
        lists = self.rows // max(rows, 1)
        turned = lists * columns + self.by_query.columns
        order = np.argsort(turned, kind="stable")
        counts = np.bincount(turned, minlength=self.num_lists * columns)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return BlockRows(
            starts,
            np.ascontiguousarray((self.rows % max(rows, 1))[order].astype(np.int32)),
            np.ascontiguousarray(self.by_query.masks[order]),
        )

    def blocks_of(self, head: int) -> tuple[Ints, Ints, Ints]:
        """Rows, columns and masks of the blocks of a head."""
        rows = self.shape[0]
        first = int(self.of_head[head]) * rows
        start, end = self.by_query.starts[first], self.by_query.starts[first + rows]
        return (
            self.rows[start:end] - first,
            self.by_query.columns[start:end].astype(np.int64),
            self.by_query.masks[start:end].astype(np.int64),
        )

    @cached_property
    def block_density(self) -> float:
        """The fraction of blocks that are computed, over all heads."""
        rows, columns = self.shape
        total = rows * columns * len(self.of_head)
        return sum(len(self.blocks_of(h)[0]) for h in range(len(self.of_head))) / max(total, 1)

    @cached_property
    def density(self) -> float:
        """The fraction of pairs that attend, over all heads."""
        total = self.queries * self.keys * len(self.of_head)
        return sum(int(self.row_counts(h).sum()) for h in range(len(self.of_head))) / max(total, 1)

    def row_counts(self, head: int) -> Ints:
        """How many keys each query of a head attends to."""
        row, column, mask = self.blocks_of(head)
        counts = np.zeros((self.shape[0], BLOCK), dtype=np.int64)
        width = np.minimum(self.keys - column * BLOCK, BLOCK)
        # Rows of a mask, cut at the last key.
        np.add.at(counts, row, np.cumsum(self.masks, axis=2)[mask, :, width - 1])
        return counts.reshape(-1)[: self.queries]

    def dense_mask(self, head: int) -> Bits:
        """All pairs of a head as [queries, keys]: for tests and small pictures."""
        rows, columns = self.shape
        full = np.zeros((rows, columns, BLOCK, BLOCK), dtype=bool)
        row, column, mask = self.blocks_of(head)
        full[row, column] = self.masks[mask]
        flat = full.transpose(0, 2, 1, 3).reshape(rows * BLOCK, columns * BLOCK)
        return flat[: self.queries, : self.keys]


def pack_rows(masks: Bits) -> "NDArray[np.uint64]":
    """Rows of 64 as bits, the first lowest."""
    packed = np.packbits(masks, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8")[..., 0].astype(np.uint64)


def unpack_rows(bits: "NDArray[np.uint64]") -> Bits:
    """The rows of 64 that `pack_rows` packed."""
    as_bytes = np.ascontiguousarray(bits.astype("<u8"))[..., None].view(np.uint8)
    return np.unpackbits(as_bytes, axis=-1, bitorder="little").astype(bool)


def check_size(count: int, what: str) -> None:
    """Refuse numbers of tokens that no list can have."""
    if not 0 <= count <= 1 << 30:
        raise PatternError(f"attention pattern: {count} {what}; expected 0 to 2^30.")
