# SPDX-License-Identifier: Apache-2.0
"""Two things timed against each other in one run: interleaved, minimum of many."""

import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(frozen=True)
class Duel:
    """Best times of two contenders, microseconds."""

    first_us: float
    second_us: float

    @property
    def ratio(self) -> float:
        """How many times faster the second one is."""
        return self.first_us / self.second_us if self.second_us else float("inf")


def duel(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    budget_seconds: float = 0.06,
    min_rounds: int = 5,
    max_rounds: int = 200,
    clock: Clock = time.perf_counter,
) -> Duel:
    """Time both in turn until the budget is spent.

    Interleaving makes a slow moment of the machine hit both; the minimum drops it from both.
    """
    first()
    second()
    best_first = best_second = float("inf")
    start = clock()
    for round_number in range(max_rounds):
        t0 = clock()
        first()
        t1 = clock()
        second()
        t2 = clock()
        best_first = min(best_first, t1 - t0)
        best_second = min(best_second, t2 - t1)
        if round_number + 1 >= min_rounds and t2 - start > budget_seconds:
            break
    return Duel(best_first * 1e6, best_second * 1e6)
