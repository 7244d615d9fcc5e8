# SPDX-License-Identifier: Apache-2.0
"""The time that a search may take, and how it is kept.

A candidate is begun if its forecast fits, and asked at every safe point (a layer solved, a step
trained) whether it will still be done in time: on a machine that got slower it will not. What was
spent is what the records of the candidates say, so a search that goes on decides as before.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gossamer.ops.timing.load import LoadWatch
from gossamer.search.candidates import Candidate
from gossamer.search.records import read_record, write_record

Clock = Callable[[], float]
# Steps and seconds from which on the pace of a candidate says how long it will take, and how much
# longer than its time that must be: the first steps are slow.
_SURE_STEPS, _SURE_SECONDS = 5, 5.0
_SURELY_LATE = 1.25
_OVERHEAD = "overhead.json"
_LOOK_SECONDS = 0.5


class OutOfTime(Exception):
    """A candidate would not be done in time.

    Attributes:
        seconds: it took until now.
        needs: how many more it would take; 0 if nothing is known of that.
    """

    def __init__(self, seconds: float, needs: float) -> None:
        super().__init__(f"stopped after {seconds:.0f} s")
        self.seconds, self.needs = seconds, needs


@dataclass(frozen=True)
class Stopped:
    """A candidate whose time was up.

    Attributes:
        seconds: it took.
        needs: how many more it was forecast to take; 0 if nothing is known of that.
        allowed: seconds that it had.
    """

    seconds: float
    needs: float
    allowed: float


NEVER = Stopped(0.0, 0.0, 0.0)


@dataclass
class Deadline:
    """Of one candidate, from now on.

    Attributes:
        seconds: it may take to be made.
        clock: of the wall.
        on_tick: called at every safe point; looks at the machine.
    """

    seconds: float = math.inf
    clock: Clock = time.perf_counter
    on_tick: Callable[[], None] = lambda: None
    _total: int = -1
    _base: tuple[int, float] = (0, 0.0)

    def __post_init__(self) -> None:
        self._start = self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds since it was set."""
        return self.clock() - self._start

    def tick(self, done: int = 0, total: int = 0) -> None:
        """Raise OutOfTime if the time is up, or will surely be before the work is done.

        Args:
            done: steps of the work.
            total: all of them; 0 where that is not known.
        """
        self.on_tick()
        elapsed = self.elapsed
        if total != self._total or done < self._base[0]:
            # Another stage. What came before its first tick says nothing of its pace.
            self._total, self._base = total, (done, elapsed)
        steps = done - self._base[0]
        needs = (elapsed - self._base[1]) / steps * (total - done) if steps else 0.0
        is_sure = steps >= _SURE_STEPS and elapsed >= _SURE_SECONDS
        if elapsed > self.seconds or (is_sure and elapsed + needs > _SURELY_LATE * self.seconds):
            raise OutOfTime(elapsed, needs)


@dataclass
class TimeBudget:
    """Seconds of a search, and how fast it goes.

    Attributes:
        seconds: it may take.
        reserve: of them, for the last measurement.
        spent: by what is on record.
        quality_seconds: of measuring the quality of one model.
    """

    seconds: float
    reserve: float = 0.0
    spent: float = 0.0
    quality_seconds: float = 0.0
    _measuring: float = 0.0
    _step: float = 0.0
    _making: float = 0.0

    @property
    def left(self) -> float:
        """For candidates; negative if they took longer."""
        return self.seconds - self.reserve - self.spent

    @property
    def for_forecasts(self) -> float:
        """What is left for them if a candidate shall follow; they time models, too."""
        left = self.left - 2 * self._measuring
        return left if left > self._measuring else 0.0

    @property
    def for_making(self) -> float:
        """What is left when a candidate is to be measured afterwards."""
        return max(self.left - self._measuring, 0.0)

    def needs(self, candidate: Candidate) -> float:
        """Seconds that a candidate will take, by those before it; 0 if nothing is known yet."""
        if candidate.is_dense and not candidate.steps:
            return self._measuring
        return candidate.steps * self._step + self._making + self._measuring

    def learn(self, candidate: Candidate, making: float, measuring: float) -> None:
        """Take note of how long a candidate took to be made, and to be measured.

        The last one counts: it knows how busy the machine is now.
        """
        # The quality of the dense model was measured before.
        self._measuring = measuring + (self.quality_seconds if candidate.recipe is None else 0.0)
        if candidate.steps:
            self._step = making / candidate.steps
        elif not candidate.is_dense:
            self._making = making

    def learn_stopped(self, candidate: Candidate, stopped: Stopped) -> None:
        """The same of one that was stopped: it is slower than it was forecast to be."""
        total = stopped.seconds + stopped.needs
        if candidate.steps and stopped.needs:
            self._step = max(self._step, total / candidate.steps)
        elif not candidate.steps:
            self._making = max(self._making, total)


class Clocks:
    """Wall and processor time of a search since its start, and what else the machine did."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        # Files are written and engines waited for: waiting is no sign here.
        self._watch = LoadWatch(is_own=False, every=_LOOK_SECONDS)
        self.look = self._watch.look

    @property
    def wall(self) -> float:
        """Seconds."""
        return time.perf_counter() - self._wall

    @property
    def cpu(self) -> float:
        """Seconds of processors that the search had."""
        return time.process_time() - self._cpu

    @property
    def doubt(self) -> str:
        """What else the machine did; empty if it was quiet."""
        load = self._watch.load()
        return "" if load.is_quiet else str(load)


class Overhead:
    """Seconds beside candidates, as the first run of a search took them.

    A run that goes on decides by those, as by the recorded seconds of candidates.

    Attributes:
        held: what was noted, by name.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _OVERHEAD
        self.held = read_record(self._path, dict[str, float]) if self._path.exists() else {}

    def timed(self, name: str, work: Callable[[], float]) -> float:
        """What `work` gives; its seconds are noted."""
        start = time.perf_counter()
        found = work()
        self.noted(name, time.perf_counter() - start)
        return found

    def noted(self, name: str, seconds: float) -> float:
        """What was noted first under this name: `seconds`, unless an earlier run did."""
        if name not in self.held:
            self.held[name] = seconds
            write_record(self._path, self.held)
        return self.held[name]
