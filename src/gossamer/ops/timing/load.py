# SPDX-License-Identifier: Apache-2.0
"""What else the machine did while something was timed: the reason to believe a time, or not to.

Four signs, each of which is enough: more programs wanted to run than this one, this one had to
wait for a core, it was pushed off a core, or the host took the core away (steal). A sign that the
system does not show is not looked at.
"""

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = [
    "Load",
    "LoadWatch",
    "one_thread",
]

# Part of the cores that others may use, and parts of the time spent waiting or stolen.
_MAX_OTHERS = 0.25
_MAX_WAITING = 0.1
_MAX_STOLEN = 0.02
# Times per second that a thread was pushed off its core; kernel threads do it now and then.
_MAX_SWITCHES = 25.0
_MIN_SWITCHES = 3
# Looking takes some tens of microseconds and comes between timed calls.
_SECONDS_BETWEEN_LOOKS = 1e-3
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_LOADAVG, _STAT = Path("/proc/loadavg"), Path("/proc/stat")


@dataclass(frozen=True)
class Look:
    """The machine and this process at one moment; None where the system does not tell.

    Attributes:
        wall: seconds of the clock on the wall.
        cpu: seconds of processors that this process used.
        switches: times that a thread of this process was pushed off its core.
        running: programs of the machine that run or could, this thread included.
        stolen: seconds of all cores that the host took away.
    """

    wall: float
    cpu: float
    switches: int | None = None
    running: int | None = None
    stolen: float | None = None


@dataclass(frozen=True)
class Load:
    """Of a machine during a measurement.

    Attributes:
        others: cores' worth of other programs that wanted to run, on average.
        cores: of the machine.
        waiting: part of the time in which this process wanted a core and had none.
        stolen: part of the cores' time that the host took away.
        switches: per second, of threads pushed off their core.
        threads: that were measured with.
    """

    others: float = 0.0
    cores: int = 1
    waiting: float = 0.0
    stolen: float = 0.0
    switches: float = 0.0
    threads: int = 1

    @property
    def is_quiet(self) -> bool:
        """Whether times taken meanwhile can be believed."""
        return not self.reasons

    @property
    def is_crowded(self) -> bool:
        """Whether more threads wanted to run than there are cores: the wall clock shows queues."""
        return self.others + self.threads > self.cores + 0.5 or self.switches > _MAX_SWITCHES

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why not, in words; empty if it was quiet."""
        found = []
        if self.others > _MAX_OTHERS * self.cores:
            found.append(f"{self.others:.1f} other programs on {self.cores} cores")
        if self.waiting > _MAX_WAITING:
            found.append(f"{self.waiting:.0%} of the time spent waiting for a core")
        elif self.switches > _MAX_SWITCHES:
            found.append(f"pushed off a core {self.switches:.0f} times a second")
        if self.stolen > _MAX_STOLEN:
            found.append(f"{self.stolen:.0%} of the time stolen by the host")
        return tuple(found)

    def __str__(self) -> str:
        return "quiet" if self.is_quiet else f"busy machine: {', '.join(self.reasons)}"


def look() -> Look:
    """The present moment."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Look(time.perf_counter(), time.process_time(), usage.ru_nivcsw, *_machine())


def _machine() -> tuple[int | None, float | None]:
    try:
        running = int(_LOADAVG.read_text().split()[3].partition("/")[0])
        fields = _STAT.read_text().partition("\n")[0].split()
        stolen = int(fields[8]) * _TICK if len(fields) > 8 else None
    except (OSError, ValueError, IndexError):
        return None, None
    return running, stolen


class LoadWatch:
    """Looks at the machine now and then, between timed calls.

    Args:
        threads: that are measured with; None = torch.get_num_threads().
        is_own: whether this process does the work that is timed; then it should never wait.
        look_now: looks; tests replace it.
        cores: of the machine.
        every: seconds between two looks, at least.
    """

    def __init__(
        self,
        threads: int | None = None,
        *,
        is_own: bool = True,
        look_now: Callable[[], Look] | None = None,
        cores: int | None = None,
        every: float = _SECONDS_BETWEEN_LOOKS,
    ) -> None:
        self._threads = threads or torch.get_num_threads()
        self._is_own = is_own
        self._look = look_now or look
        self._cores = cores or os.cpu_count() or 1
        self._every = every
        self._first = self._last = self._look()
        self._looked = time.perf_counter()
        self._running: list[int] = []

    def look(self) -> None:
        """Call it between timed calls; it does nothing if it has just looked."""
        if time.perf_counter() - self._looked >= self._every:
            self._take()

    def _take(self) -> None:
        self._last, self._looked = self._look(), time.perf_counter()
        if self._last.running is not None:
            self._running.append(self._last.running)

    def load(self) -> Load:
        """Of the machine since this watch was made."""
        self._take()
        first, last = self._first, self._last
        seconds = max(last.wall - first.wall, 1e-9)
        others = waiting = stolen = switches = 0.0
        if self._running:
            # This thread looks, so it runs; its helpers may be spinning.
            others = max(sum(self._running) / len(self._running) - self._threads, 0.0)
        if self._is_own and self._threads == 1:
            waiting = min(max(1 - (last.cpu - first.cpu) / seconds, 0.0), 1.0)
        if last.stolen is not None and first.stolen is not None:
            # The system counts in ticks: the last one may have been stolen before.
            stolen = max(last.stolen - first.stolen - _TICK, 0.0) / (seconds * self._cores)
        if last.switches is not None and first.switches is not None:
            count = last.switches - first.switches
            switches = count / seconds if self._is_own and count >= _MIN_SWITCHES else 0.0
        return Load(others, self._cores, waiting, stolen, switches, self._threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Measure on one thread: comparable between machines, and steady on a busy one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
