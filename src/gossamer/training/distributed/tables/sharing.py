# SPDX-License-Identifier: Apache-2.0
"""Packets of unequal sizes sent to all ranks, and how many of their rows are the same.

Legend: W ranks.
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gossamer.training.distributed.tables.rows import KeyedRows

# Bytes of a packet that may go to all others at once.
_MOST_AT_ONCE = 1 << 19
# Linear counting: one row in _SAMPLED sets one of _BITS bits; full at some two million rows.
_BITS = 4096
_SAMPLED = 64
# 2^64 / golden ratio, as int64: neighbouring keys fall far apart.
_SPREAD = 0x9E3779B97F4A7C15 - 2**64


def gather_bytes(
    mine: torch.Tensor, sizes: Sequence[int], group: dist.ProcessGroup | None
) -> list[torch.Tensor]:
    """The bytes of all ranks, whose sizes all know, in messages of exactly these sizes.

    gloo's own all-gather takes equal sizes, so all would be as long as the longest. Small packets
    go to all others at once, which waits for nobody (0.3 MB on the loopback: 1.1 ms, in a ring 1.7,
    padded 2.0). Of large ones that arrive at once switches drop some, so that these go round in a
    ring (four hosts, 200 Mbit/s: 4 MB took 580 ms, at once 740; 1.4 MB 189, at once 213).
    """
    rank, world = dist.get_rank(group), len(sizes)
    found = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    found[rank] = mine
    at_once = max(sizes) <= _MOST_AT_ONCE
    # (packet sent, to whom, packet received, from whom); a ring hands on what came.
    rounds = [
        (rank, (rank + step) % world, (rank - step) % world, (rank - step) % world)
        for step in range(1, world)
    ]
    if not at_once:
        right, left = (rank + 1) % world, (rank - 1) % world
        rounds = [
            ((rank - step + 1) % world, right, (rank - step) % world, left)
            for step in range(1, world)
        ]
    works: list[dist.Work | None] = []
    for sent, receiver, came, sender in rounds:
        if sizes[came]:
            works.append(dist.irecv(found[came], group=group, group_src=sender))
        if sizes[sent]:
            works.append(dist.isend(found[sent], group=group, group_dst=receiver))
        if not at_once:
            _finish(works)
    _finish(works)
    return found


def _finish(works: list[dist.Work | None]) -> None:
    while works:
        work = works.pop()
        if work is not None:
            work.wait()


def sketch_of(rows: Sequence[KeyedRows]) -> torch.Tensor:
    """Which rows a rank has, in 512 bytes: int32 [128], whose OR over ranks counts their union."""
    bits = torch.zeros(_BITS, dtype=torch.bool)
    for index, part in enumerate(rows):
        mixed = (part.keys + index) * _SPREAD
        mixed = mixed[(mixed >> 40) % _SAMPLED == 0]
        bits[(mixed >> 46) % _BITS] = True
    return (bits.view(-1, 32) * (1 << torch.arange(32))).sum(1).to(torch.int32)


def estimated_union(sketches: torch.Tensor) -> float:
    """Rows that any rank has, of all ranks' sketches; infinite beyond what they can count."""
    both = sketches[0]
    for sketch in sketches[1:]:
        both = both | sketch
    ones = int(((both[:, None] >> torch.arange(32)) & 1).sum())
    return -_BITS * math.log(1 - ones / _BITS) * _SAMPLED if ones < _BITS else math.inf
