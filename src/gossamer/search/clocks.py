# SPDX-License-Identifier: Apache-2.0
"""What a search takes beside its candidates, and what the machine does meanwhile."""

import time
from collections.abc import Callable
from pathlib import Path

from gossamer.ops.load import LoadWatch
from gossamer.search.records import read_record, write_record

_OVERHEAD = "overhead.json"
_LOOK_SECONDS = 0.5


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
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _OVERHEAD
        self._held = read_record(self._path, dict[str, float]) if self._path.exists() else {}

    def timed(self, name: str, work: Callable[[], float]) -> float:
        """What `work` gives; its seconds are noted."""
        start = time.perf_counter()
        found = work()
        self.noted(name, time.perf_counter() - start)
        return found

    def of(self, name: str) -> float:
        """What was noted under this name."""
        noted: float = self._held[name]
        return noted

    def noted(self, name: str, seconds: float) -> float:
        """What was noted first under this name: `seconds`, unless an earlier run did."""
        if name not in self._held:
            self._held[name] = seconds
            write_record(self._path, self._held)
        return self.of(name)
