# SPDX-License-Identifier: Apache-2.0
"""Ways to add up gradients over replicas: rings, reduction trees, a parameter server.

n ranks and a payload of p bytes over flows of b bytes per second, t seconds before a message:

- ring: 2 (n - 1) messages of p / n bytes, one after the other;
- tree: binomial, up and down (FireCaffe, arXiv 1511.00175): 2 ceil(log2 n) messages of p bytes;
- server: one more process gets p bytes of each of n ranks through its one link, and sends as much.

A ring moves least and a tree waits least, so that small payloads want trees.
"""

from typing import Literal

__all__ = ["Collective", "reduce_bytes", "reduce_time"]

Collective = Literal["ring", "tree", "server", "best"]


def reduce_time(
    kind: Collective, ranks: int, payload: float, bytes_per_second: float, latency: float
) -> float:
    """Seconds until all ranks have the sum; "best" is the faster one of ring and tree."""
    if ranks == 1:
        return 0.0
    if kind == "best":
        both: tuple[Collective, Collective] = ("ring", "tree")
        return min(reduce_time(one, ranks, payload, bytes_per_second, latency) for one in both)
    if kind == "ring":
        return 2 * payload * (1 - 1 / ranks) / bytes_per_second + 2 * (ranks - 1) * latency
    if kind == "tree":
        return 2 * tree_levels(ranks) * (payload / bytes_per_second + latency)
    return 2 * (ranks * payload / bytes_per_second + latency)


def reduce_bytes(
    kind: Collective, ranks: int, payload: float, bytes_per_second: float, latency: float
) -> float:
    """Bytes that the busiest rank sends; a server is none."""
    if ranks == 1:
        return 0.0
    if kind == "best":
        given = (ranks, payload, bytes_per_second, latency)
        kind = "ring" if reduce_time("ring", *given) <= reduce_time("tree", *given) else "tree"
    if kind == "ring":
        return 2 * payload * (1 - 1 / ranks)
    # The root of a tree sends the sum once in every level.
    return payload * (tree_levels(ranks) if kind == "tree" else 1)


def tree_levels(ranks: int) -> int:
    """Steps until the sum of all ranks is in one place: ceil(log2 ranks)."""
    return (ranks - 1).bit_length()
