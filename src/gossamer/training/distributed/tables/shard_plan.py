# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which rows of which table; a pure function of sizes, the same on all ranks."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from gossamer.errors import InputError

Sharding = Literal["none", "auto", "table", "row"]


class TableSize(NamedTuple):
    """Rows of a table, and bytes of one of them."""

    rows: int
    row_bytes: int

    @property
    def bytes(self) -> int:
        """Of the whole table."""
        return self.rows * self.row_bytes


def plan_shards(
    sizes: Mapping[str, TableSize],
    num_ranks: int,
    how: Sharding = "auto",
    room: int | None = None,
) -> dict[str, tuple[int, ...]]:
    """First rows of all ranks' parts of each table, and the end: `num_ranks` + 1 bounds.

    Args:
        sizes: of the tables, by name.
        num_ranks: that share them.
        how: "table" gives every table to one rank, largest first, each to the rank that holds
            least; "row" cuts each into equal ranges; "auto" is "table" but for tables above the
            mean load of a rank, or above `room`.
        room: bytes that a rank may hold; None: as much as it takes.
    """
    share = sum(size.bytes for size in sizes.values()) / num_ranks
    limit = share if room is None else min(share, room)
    load = [0] * num_ranks
    bounds: dict[str, tuple[int, ...]] = {}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1].bytes):
        if how == "row" or (how == "auto" and size.bytes > limit):
            found = [size.rows * rank // num_ranks for rank in range(num_ranks + 1)]
        else:
            least = load.index(min(load))
            found = [size.rows if rank > least else 0 for rank in range(num_ranks + 1)]
        for rank in range(num_ranks):
            load[rank] += (found[rank + 1] - found[rank]) * size.row_bytes
        bounds[name] = tuple(found)
        _check_room(name, size, load, room, how)
    return {name: bounds[name] for name in sizes}


def _check_room(
    name: str, size: TableSize, load: Sequence[int], room: int | None, how: Sharding
) -> None:
    if room is None or max(load) <= room:
        return
    advice = "more ranks" if how == "row" else "more ranks, or cut tables by rows"
    raise InputError(
        f"{name}: {size.rows} rows are {size.bytes:,} bytes, and rank {load.index(max(load))} would"
        f" hold {max(load):,} with its part of them; there is room for {room:,}. Use {advice}."
    )
