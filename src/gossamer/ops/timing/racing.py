# SPDX-License-Identifier: Apache-2.0
"""Things timed against each other in one run: interleaved, minimum of many, on a fair clock.

On one thread the clock is the processor's: it stands still while a neighbour has the core, where
the wall clock would show the neighbour. Several threads are timed on the wall clock. Every result
says how far it can be trusted: a spread, and what else the machine did (`load.py`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from gossamer.ops.timing.load import Load, LoadWatch, one_thread

Call = Callable[[], object]
Clock = Callable[[], float]
# Runs something once and says how many seconds it took.
Stopwatch = Callable[[], float]

# A race is cut into so many parts; a time is as good as the best times of its parts agree.
_PARTS = 4
_AGREE = 0.05
# Times the budget that is spent where the parts do not agree, and wall time that is waited for it.
_MORE = 3.0
_PATIENCE = 8.0
# Seconds after which a watch knows enough of the machine to give a race up.
_SURE_SECONDS = 0.05
# After the first rounds, contenders this much slower than the best run no more.
_HOPELESS = 2.0


@dataclass(frozen=True)
class Race:
    """Best times of several contenders, taken in turn.

    Attributes:
        us: microseconds of each.
        spread: how far the best times of parts of the race lie apart, as a fraction; the worst of
            those contenders that ran to the end.
        load: what else the machine did.
        threads: that ran; fewer than asked for where the machine had no room for them.
    """

    us: tuple[float, ...]
    spread: float = field(default=0.0, compare=False)
    load: Load = field(default=Load(), compare=False)
    threads: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Duel:
    """Best times of two contenders, microseconds; `spread` and `load` as those of a `Race`."""

    first_us: float
    second_us: float
    spread: float = field(default=0.0, compare=False)
    load: Load = field(default=Load(), compare=False)

    @property
    def ratio(self) -> float:
        """How many times faster the second one is."""
        return self.first_us / self.second_us if self.second_us else float("inf")

    @property
    def us(self) -> tuple[float, float]:
        """Both times."""
        return self.first_us, self.second_us

    @property
    def doubt(self) -> str:
        """Why the times should not be believed; empty if the machine was quiet."""
        return "" if self.load.is_quiet else str(self.load)


def fair_clock() -> Clock:
    """Of the processor on one thread: on a busy machine long calls never run undisturbed."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def stopwatch(call: Call, clock: Clock = time.perf_counter) -> Stopwatch:
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
    watch: LoadWatch | None = None,
) -> list[float]:
    """Best microseconds of each contender: all in turn, after one round that does not count.

    Interleaving makes a slow moment of the machine hit all; the minimum drops it from all. `watch`
    looks at the machine between rounds.
    """
    limits = budget_seconds, min_rounds, max_rounds
    return _best(_rounds(contenders, *limits, time.perf_counter, watch))


def _rounds(
    contenders: Sequence[Stopwatch],
    budget_seconds: float,
    min_rounds: int,
    max_rounds: int,
    clock: Clock,
    watch: LoadWatch | None,
) -> list[list[float]]:
    """Seconds of every call of every contender."""
    for contender in contenders:
        contender()
    samples: list[list[float]] = [[] for _ in contenders]
    start = clock()
    for round_number in range(max_rounds):
        for seconds, contender in zip(samples, contenders, strict=True):
            seconds.append(contender())
        if watch is not None:
            watch.look()
        if round_number + 1 >= min_rounds and clock() - start > budget_seconds:
            break
    return samples


def _best(samples: list[list[float]]) -> list[float]:
    return [1e6 * min(seconds, default=float("inf")) for seconds in samples]


def duel(
    first: Call,
    second: Call,
    *,
    budget_seconds: float = 0.06,
    min_rounds: int = 5,
    max_rounds: int = 200,
    clock: Clock | None = None,
    watch: LoadWatch | None = None,
) -> Duel:
    """A race of two calls on the fair clock; the spread is the larger one of the two."""
    ticks = clock or fair_clock()
    seen = watch or LoadWatch()
    samples = _rounds(
        (stopwatch(first, ticks), stopwatch(second, ticks)),
        budget_seconds, min_rounds, max_rounds, ticks, seen,
    )  # fmt: skip
    first_us, second_us = _best(samples)
    return Duel(first_us, second_us, max(map(spread_of, samples)), seen.load())


def spread_of(samples: Sequence[float]) -> float:
    """How far the best times of consecutive parts lie apart, as a fraction of the best."""
    size = max(-(-len(samples) // _PARTS), 1)
    bests = [min(samples[start : start + size]) for start in range(0, len(samples), size)]
    return max(bests) / min(bests) - 1 if bests and min(bests) > 0 else 0.0


def contest(*calls: Call, budget_seconds: float = 0.03) -> Race:
    """Which of several calls is fastest, for calls that do the same work in this process.

    All take turns in one race. What is clearly slower after the first rounds drops out; the others
    go on until their best times repeat, or time is up. Where more threads want to run than there
    are cores, the wall clock shows queues only: the calls then race on one thread, on its clock.

    Args:
        calls: the contenders.
        budget_seconds: for each of them, of the clock of the race.
    """
    threads, watch = torch.get_num_threads(), LoadWatch()
    give_up = (lambda: watch.load().is_crowded) if threads > 1 else (lambda: False)
    found = run_contest(calls, budget_seconds, fair_clock(), watch, give_up)
    if threads == 1 or not found.load.is_crowded:
        return found
    with one_thread():
        alone = run_contest(calls, budget_seconds, fair_clock(), LoadWatch())
    # One thread may find room where several do not; the times are still not those asked for.
    return replace(alone, load=found.load, threads=1)


def run_contest(
    calls: Sequence[Call],
    budget_seconds: float,
    clock: Clock,
    watch: LoadWatch,
    give_up: Callable[[], bool] = lambda: False,
    *,
    min_rounds: int = 5,
    max_rounds: int = 1000,
    wall: Clock = time.perf_counter,
) -> Race:
    """One race of `contest` on the clock that is given; it ends early if `give_up` says so."""
    watches = [stopwatch(call, clock) for call in calls]
    for contender in watches:
        contender()
    samples: list[list[float]] = [[] for _ in calls]
    running = list(range(len(calls)))
    total, next_check = budget_seconds * len(calls), min_rounds
    start, wall_start = clock(), wall()
    for rounds in range(1, max_rounds + 1):
        for index in running:
            samples[index].append(watches[index]())
        watch.look()
        if rounds < next_check:
            continue
        next_check = rounds + -(-rounds // 8)
        best = [min(seconds) for seconds in samples]
        running = [index for index in running if best[index] <= _HOPELESS * min(best)]
        spent, waited = clock() - start, wall() - wall_start
        if spent > _MORE * total or waited > _PATIENCE * total:
            break
        if waited > _SURE_SECONDS and give_up():
            break
        if spent > total and all(spread_of(samples[index]) <= _AGREE for index in running):
            break
    return Race(
        tuple(1e6 * min(seconds) for seconds in samples),
        max((spread_of(samples[index]) for index in running), default=0.0),
        watch.load(),
    )
