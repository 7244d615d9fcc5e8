# SPDX-License-Identifier: Apache-2.0
"""What is tried while there is time: candidates one after the other, and models of others.

What was not tried is said.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator

from gossamer.search.budget import Deadline, OutOfTime, Overhead, Stopped, TimeBudget
from gossamer.search.candidates import DENSE, Candidate
from gossamer.search.trial import Point, Trial, Workshop
from gossamer.search.workloads import Workload

AskOthers = Callable[[Workload, Point], Iterable[Point]]
# Of the budget, for models of others.
_OTHERS_PART = 0.25


def pursue(
    candidates: Iterator[Candidate],
    maker: Workshop,
    budget: TimeBudget,
    take: Callable[[Trial], None],
    set_deadline: Callable[[float], Deadline] = Deadline,
) -> list[str]:
    """Try what there is time for; returns what was left out, and why.

    Args:
        candidates: each may depend on what was taken before.
        maker: of candidates.
        budget: is charged with the seconds that are on record, now or from earlier runs. Dense is
            always measured: nothing can be said without it.
        take: gets every trial.
        set_deadline: for so many seconds from now.
    """
    left_out = []
    for candidate in candidates:
        earlier = reason = None
        if not maker.knows(candidate):
            earlier = maker.stopped(candidate)
            reason = _reason_against(candidate, earlier, budget)
        before = 0.0 if earlier is None else earlier.seconds
        budget.spent += before
        if reason is not None:
            if earlier is not None:
                budget.learn_stopped(candidate, earlier)
            left_out.append(f"{candidate.name}: {reason}")
            continue
        deadline = set_deadline(math.inf if candidate.name == DENSE else budget.for_making)
        try:
            trial = maker.try_out(candidate, deadline)
        except OutOfTime as stop:
            stopped = Stopped(before + stop.seconds, stop.needs, before + deadline.seconds)
            budget.spent += stop.seconds
            budget.learn_stopped(candidate, stopped)
            left_out.append(f"{candidate.name}: {_stopped_text(stopped)}")
            continue
        budget.spent += trial.seconds - before
        budget.learn(candidate, trial.making, trial.seconds - trial.making)
        take(trial)
    return left_out


def _reason_against(
    candidate: Candidate, earlier: Stopped | None, budget: TimeBudget
) -> str | None:
    """Why it is not begun, or not gone on with; dense always is."""
    if candidate.name == DENSE:
        return None
    needs, left = budget.needs(candidate), budget.left
    if earlier is not None:
        if budget.for_making <= earlier.allowed:
            return _stopped_text(earlier)
        needs, left = earlier.needs, left - earlier.seconds
    if needs < left:
        return None
    if left <= 0:
        return "the time was up."
    return f"would take about {seconds_text(needs)}, {seconds_text(left)} were left."


def _stopped_text(stopped: Stopped) -> str:
    more = f"would have taken {seconds_text(stopped.needs)} more"
    return (
        f"stopped after {seconds_text(stopped.seconds)},"
        f" {more if stopped.needs else 'its time was up'}."
    )


def seconds_text(seconds: float) -> str:
    """`40 s` or `3.5 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def ask_others(
    contenders: AskOthers | None,
    work: Workload,
    dense_point: Point,
    budget: TimeBudget,
    overhead: Overhead,
) -> tuple[list[Point], list[str]]:
    """Models of others, as many as a part of the budget allows, and what is to be said of it."""
    points: list[Point] = []
    if contenders is None:
        return points, []
    start, is_cut = time.perf_counter(), budget.left <= 0
    asked: Iterable[Point] = () if is_cut else contenders(work, dense_point)
    for point in asked:
        points.append(point)
        is_cut = time.perf_counter() - start > _OTHERS_PART * budget.seconds
        if is_cut:
            break
    if isinstance(asked, Generator):
        asked.close()
    budget.spent += overhead.noted("others", time.perf_counter() - start)
    return points, [f"other engines: not all were asked, after {len(points)}."] if is_cut else []
