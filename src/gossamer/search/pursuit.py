# SPDX-License-Identifier: Apache-2.0
"""Candidates tried one after the other while there is time; what was not tried is said."""

from collections.abc import Callable, Iterator
from typing import Protocol

from gossamer.search.budget import Budget, Deadline, OutOfTime, Stopped
from gossamer.search.candidates import DENSE, Candidate
from gossamer.search.trial import Trial


class Maker(Protocol):
    """What makes and measures candidates: a `Workshop`."""

    def knows(self, candidate: Candidate) -> bool:
        """Whether an earlier run has measured it."""

    def stopped(self, candidate: Candidate) -> Stopped | None:
        """What earlier runs did of it before its time was up."""

    def try_out(self, candidate: Candidate, deadline: Deadline | None = None) -> Trial:
        """Make and measure it, or raise OutOfTime."""


def pursue(
    candidates: Iterator[Candidate],
    maker: Maker,
    budget: Budget,
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
        earlier = None if maker.knows(candidate) else maker.stopped(candidate)
        before = 0.0 if earlier is None else earlier.seconds
        reason = None if maker.knows(candidate) else _reason_against(candidate, earlier, budget)
        budget.spent += before
        if reason is not None:
            if earlier is not None:
                budget.learn_stopped(candidate, earlier)
            left_out.append(f"{candidate.name}: {reason}")
            continue
        is_dense = candidate.name == DENSE
        deadline = set_deadline(float("inf") if is_dense else budget.for_making)
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


def _reason_against(candidate: Candidate, earlier: Stopped | None, budget: Budget) -> str | None:
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
