# SPDX-License-Identifier: Apache-2.0
"""Things timed against each other in one run: interleaved, minimum of many."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Clock = Callable[[], float]
# Runs something once and says how many seconds it took.
Stopwatch = Callable[[], float]


@dataclass(frozen=True)
class Duel:
    """Best times of two contenders, microseconds."""

    first_us: float
    second_us: float

    @property
    def ratio(self) -> float:
        """How many times faster the second one is."""
        return self.first_us / self.second_us if self.second_us else float("inf")


def stopwatch(call: Callable[[], object], clock: Clock = time.perf_counter) -> Stopwatch:
    """Times one call."""

    def watch() -> float:
        start = clock()
        call()
        return clock() - start

    return watch


def race(
    contenders: Sequence[Stopwatch],
    *,
    budget_seconds: float = 0.06,
    min_rounds: int = 5,
    max_rounds: int = 200,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """Best microseconds of each contender: all in turn, after one round that does not count.

    Interleaving makes a slow moment of the machine hit all; the minimum drops it from all.
    """
    for watch in contenders:
        watch()
    best = [float("inf")] * len(contenders)
    start = clock()
    for round_number in range(max_rounds):
        best = [min(seconds, watch()) for seconds, watch in zip(best, contenders, strict=True)]
        if round_number + 1 >= min_rounds and clock() - start > budget_seconds:
            break
    return [seconds * 1e6 for seconds in best]


def duel(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    budget_seconds: float = 0.06,
    min_rounds: int = 5,
    max_rounds: int = 200,
    clock: Clock = time.perf_counter,
) -> Duel:
    """A race of two calls."""
    first_us, second_us = race(
        (stopwatch(first, clock), stopwatch(second, clock)),
        budget_seconds=budget_seconds,
        min_rounds=min_rounds,
        max_rounds=max_rounds,
        clock=clock,
    )
    return Duel(first_us, second_us)
