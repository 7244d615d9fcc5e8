# SPDX-License-Identifier: Apache-2.0
"""Cutting a row of costs into contiguous parts so that the dearest part is as cheap as possible.

Dynamic programming over (parts, items): with T(p, j) the least possible maximum when the first j
items make p parts, T(p, j) = min over i of max(T(p-1, i), cost of items i..j). The first of the two
grows with i and the second falls, so they cross once, further right for a larger j: O(parts items).
A planner cuts a model hundreds of times.
"""

from collections.abc import Sequence
from itertools import accumulate

from gossamer.errors import InputError

Bounds = tuple[tuple[int, int], ...]


def partition(costs: Sequence[float], num_parts: int) -> Bounds:
    """`num_parts` non-empty ranges (start, stop) that cover `costs` with the least maximal sum.

    The same for all ranks, also where several cuts are equally good.
    """
    if not 1 <= num_parts <= len(costs):
        raise InputError(f"partition: {len(costs)} items cannot make {num_parts} non-empty parts.")
    if any(not cost >= 0 for cost in costs):
        raise InputError(f"partition: costs must be numbers >= 0; got {list(costs)}.")
    num_items = len(costs)
    until = [0.0, *accumulate(costs)]
    best = until[:]  # one part
    cuts = []
    for part in range(2, num_parts + 1):
        following = [float("inf")] * (num_items + 1)
        starts = [0] * (num_items + 1)
        start = part - 1
        for stop in range(part, num_items + 1):

            def dearest(start: int, stop: int = stop, best: list[float] = best) -> float:
                return max(best[start], until[stop] - until[start])

            while start + 1 < stop and best[start + 1] <= until[stop] - until[start + 1]:
                start += 1
            right = start + 1 < stop and dearest(start + 1) < dearest(start)
            starts[stop] = start + right
            following[stop] = dearest(starts[stop])
        best = following
        cuts.append(starts)
    bounds, stop = [], num_items
    for starts in reversed(cuts):
        bounds.append((starts[stop], stop))
        stop = starts[stop]
    return ((0, stop), *reversed(bounds))
