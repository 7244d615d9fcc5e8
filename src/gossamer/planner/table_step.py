# SPDX-License-Identifier: Apache-2.0
"""What tables add to a step of replicas: rows that are touched, their bytes and their seconds.

Ids follow Zipf's law: the i-th most frequent row is asked for in proportion to i^-skew. So n draws
touch sum of 1 - (1 - p_i)^n rows, which says both what a rank sends and how much of it others send,
too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gossamer.training.distributed import TableWire, table_traffic

# Seconds of one core per id that is drawn, and per row and number that arrives: sorting, encoding,
# decoding and adding up, measured on one core of a Zen 5 at widths 16 and 64.
_PER_DRAW, _PER_ROW, _PER_NUMBER = 45e-9, 35e-9, 0.6e-9
_BINS = 4096


class TableShape(NamedTuple):
    """A table whose gradients are touched rows.

    Attributes:
        rows: of the table.
        width: numbers of a row.
        ids: of one sample, on average.
    """

    rows: int
    width: int
    ids: float = 1.0


def touched_rows(rows: int, draws: float, skew: float) -> float:
    """Different rows among so many draws, on average."""
    # Rows of about equal frequency together, so that ten million cost what a thousand do.
    edges = np.unique(np.geomspace(1, rows + 1, _BINS).round())
    counts, middle = np.diff(edges), np.sqrt(edges[:-1] * (edges[1:] - 1).clip(min=1))
    chances = middle**-skew
    chances /= (counts * chances).sum()
    missed = draws * np.log1p(-chances.clip(max=1 - 1e-12))
    return float((counts * -np.expm1(missed)).sum())


class TableStep(NamedTuple):
    """What tables cost a rank in a step.

    Attributes:
        bytes: that it sends.
        messages: one after the other.
        work: seconds of one core.
    """

    bytes: float
    messages: int
    work: float


def table_step(
    tables: Sequence[TableShape], samples: float, ranks: int, wire: TableWire, skew: float
) -> TableStep:
    """Of one step of `ranks` replicas with `samples` samples each."""
    rows: dict[int, float] = {}
    union = numbers = draws = 0.0
    for table in tables:
        asked = samples * table.ids
        mine = touched_rows(table.rows, asked, skew)
        rows[table.width] = rows.get(table.width, 0.0) + mine
        union += touched_rows(table.rows, asked * ranks, skew)
        numbers += mine * table.width * ranks
        draws += asked
    mine = sum(rows.values())
    traffic = table_traffic(rows, union / max(mine, 1e-9), ranks, wire, len(tables))
    work = draws * _PER_DRAW + mine * ranks * _PER_ROW + numbers * _PER_NUMBER
    return TableStep(traffic.bytes, 4 if traffic.route == "owner" else 2, work)
