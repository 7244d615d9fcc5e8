# SPDX-License-Identifier: Apache-2.0
"""Values moved between a small fast memory and a slow one: bounds, canonical order, annealed order.

    python benchmarks/io_order.py [--json] [--moves 60000] [--quick]

Four layers of 64 neurons with a tenth of all connections, and a network grown to fit its memory.
`saved` is the part of the excess over the lower bound that annealing removes.
"""

import torch
from rich.table import Table

from gossamer.running.layers.io_order import Network, anneal, count_io, grow_compact
from support.options import give, machine, parser, progress


def networks():
    """The networks by name, and the memories each is run with."""
    generator = torch.Generator().manual_seed(0)
    masks = [torch.rand(64, 64, generator=generator) < 0.1 for _ in range(3)]
    return {
        "4 layers x 64": (Network.of_masks(masks), (3, 16, 32, 64, 130)),
        "grown for 32": (grow_compact(32, 1000, 5), (24, 32)),
    }


def measured(name, network, memory, moves):
    """All counts of one network with one memory."""
    canonical = count_io(network, memory).total
    row = {
        "network": name,
        "memory": memory,
        "lower": network.lower_bound,
        "lru": count_io(network, memory, knows_future=False).total,
        "canonical": canonical,
        "upper": network.upper_bound,
    }
    if canonical > network.lower_bound and memory > 3:
        row["annealed"] = count_io(network, memory, anneal(network, memory, moves=moves)).total
        row["saved"] = (canonical - row["annealed"]) / (canonical - network.lower_bound)
    progress(str(row))
    return row


def main():
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--moves", type=int, default=60_000)
    given = made.parse_args()
    moves = 2000 if given.quick else given.moves
    rows = [
        measured(name, network, memory, moves)
        for name, (network, memories) in networks().items()
        for memory in memories
    ]
    table = Table(title=f"values moved; annealing with {moves} moves")
    columns = ("network", "memory", "lower", "lru", "canonical", "annealed", "saved", "upper")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        table.add_row(*(f"{cell:.0%}" if isinstance(cell, float) else str(cell) for cell in cells))
    give(given, {"machine": machine(), "rows": rows}, table)


if __name__ == "__main__":
    main()
