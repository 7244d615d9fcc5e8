# SPDX-License-Identifier: Apache-2.0
"""How long a run has taken: by a clock and of the CPU, through kills and resumes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]


class Stopwatch:
    """Seconds since `start`, and those of earlier parts of the run.

    Args:
        clock: for limits that do not depend on other work, time.process_time.
    """

    def __init__(self, clock: Clock) -> None:
        self.seconds = [0.0, 0.0]
        self._clocks = (clock, time.process_time)
        self._last: list[float] | None = None

    def start(self) -> None:
        """Time counts from now on."""
        self._last = [clock() for clock in self._clocks]

    def read(self) -> list[float]:
        """By the clock, and CPU seconds of all threads."""
        if self._last is not None:
            now = [clock() for clock in self._clocks]
            spent = [new - old for new, old in zip(now, self._last, strict=True)]
            self.seconds = [held + more for held, more in zip(self.seconds, spent, strict=True)]
            self._last = now
        return self.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside does not count."""
        self.read()
        try:
            yield
        finally:
            self.start()
