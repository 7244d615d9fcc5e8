# SPDX-License-Identifier: Apache-2.0
"""Progress of long work on stderr: a live line with ETA on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# How often a pipe or a log file gets a line while a stage runs.
PLAIN_SECONDS = 5.0


class ProgressStage:
    """A step of work that is under way; this one says nothing."""

    def advance(self, amount: int = 1) -> None:
        """Say that `amount` more of the total is done."""


@contextlib.contextmanager
def run_stage(title: str, total: int | None, screen: "Console | None") -> Iterator[ProgressStage]:
    """Show `title` on a console of stderr until the block ends; without one nothing is shown."""
    start = time.monotonic()
    if screen is None:
        yield ProgressStage()
    elif screen.is_terminal and not screen.is_dumb_terminal:
        with _live(title, total, screen) as stage:
            yield stage
        screen.print(f"{title}: {time.monotonic() - start:.1f} s", markup=False, highlight=False)
    else:
        yield PlainStage(title, total)
        _line(f"{title}: done in {time.monotonic() - start:.1f} s")


class PlainStage(ProgressStage):
    """One line at the start, one every few seconds."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total, self._done = title, total, 0
        self._start = self._last = time.monotonic()
        _line(f"{title} ...")

    def advance(self, amount: int = 1) -> None:
        """Count, and print if the last line is old."""
        self._done += amount
        now = time.monotonic()
        if self._total and self._done < self._total and now - self._last >= PLAIN_SECONDS:
            self._last = now
            left = (now - self._start) * (self._total - self._done) / self._done
            _line(f"{self._title}: {self._done / self._total:.0%}, about {left:.0f} s left")


def _line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _live(title: str, total: int | None, screen: "Console") -> Iterator[ProgressStage]:
    from rich import progress

    columns: list[progress.ProgressColumn] = [
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
    ]
    if total is not None:
        columns += [progress.BarColumn(), progress.TimeRemainingColumn()]
    columns.append(progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(title, total=total)

        class LiveStage(ProgressStage):
            def advance(self, amount: int = 1) -> None:
                bar.advance(task, amount)

        yield LiveStage()
