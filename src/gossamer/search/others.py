# SPDX-License-Identifier: Apache-2.0
"""Models of others to compare with, asked for within a part of the budget."""

import time
from collections.abc import Callable, Generator, Iterable

from gossamer.search.budget import Budget
from gossamer.search.clocks import Overhead
from gossamer.search.trial import Point
from gossamer.search.workloads.workload import Workload

AskOthers = Callable[[Workload, Point], Iterable[Point]]
_PART = 0.25


def ask_others(
    contenders: AskOthers | None,
    work: Workload,
    dense_point: Point,
    budget: Budget,
    overhead: Overhead,
) -> tuple[list[Point], list[str]]:
    """Models of others, as many as a part of the budget allows, and what is to be said of it."""
    points: list[Point] = []
    if contenders is None:
        return points, []
    start, allowed = time.perf_counter(), _PART * budget.seconds
    asked: Iterable[Point] = contenders(work, dense_point) if budget.left > 0 else ()
    is_cut = budget.left <= 0
    for point in asked:
        points.append(point)
        is_cut = time.perf_counter() - start > allowed
        if is_cut:
            break
    if isinstance(asked, Generator):
        asked.close()
    budget.spent += overhead.noted("others", time.perf_counter() - start)
    return points, [f"other engines: not all were asked, after {len(points)}."] if is_cut else []
