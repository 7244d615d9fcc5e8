# SPDX-License-Identifier: Apache-2.0
"""Bytes of table gradients on the wire, as formulas: no torch, nothing is run.

Legend: W ranks, N rows that one rank has touched, U rows that any rank has touched, b bytes of a
row: 4 for its id, and its values. By `gather` every rank sends its rows to all others, (W-1) N b.
By `owner` rows go to one rank each, which adds them up and sends the sums to all others:
(W-1)/W (N + U) b. That is less once ranks touch the same rows often enough: U < (W-1) N.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TableWire = Literal["full", "int8", "int4"]
ID_BYTES = 4
# Of a table in the message before the rows: how many there are, and the largest number.
HEAD_BYTES = 8


def row_bytes(width: int, wire: TableWire, itemsize: int = 4) -> int:
    """Bytes of one row with its id; `itemsize` is that of a number as it is."""
    return ID_BYTES + {"full": itemsize * width, "int8": width, "int4": -(-width // 2)}[wire]


@dataclass(frozen=True)
class TableTraffic:
    """What the busiest rank sends in a step, forecast.

    Attributes:
        gather: bytes if every rank sends its rows to all others.
        owner: bytes if rows go to owners, and sums from there to all.
    """

    gather: float
    owner: float

    @property
    def route(self) -> Literal["gather", "owner"]:
        """The one with fewer bytes; in doubt the one with fewer messages and one rounding."""
        return "owner" if self.owner < 0.9 * self.gather else "gather"

    @property
    def bytes(self) -> float:
        """Of that route."""
        return min(self.gather, self.owner) if self.route == "owner" else self.gather


def table_traffic(
    rows: Mapping[int, float], union: float, ranks: int, wire: TableWire, num_tables: int
) -> TableTraffic:
    """Bytes of a step of `ranks` ranks.

    Args:
        rows: that one rank touches, by their width.
        union: rows that any rank touches, as a multiple of one rank's.
        ranks: of the exchange.
        wire: how values travel.
        num_tables: of the model.
    """
    packet = sum(count * row_bytes(width, wire) for width, count in rows.items())
    head = (ranks - 1) * HEAD_BYTES * num_tables
    shared = packet * (1 + union) * (ranks - 1) / ranks
    # Owners say how many rows of each table come, twice.
    return TableTraffic((ranks - 1) * packet + head, shared + 2.5 * head)
