# SPDX-License-Identifier: Apache-2.0
"""Progress of long work on stderr: a live line with ETA on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Protocol

# How often a pipe or a log file gets a line while a stage runs.
PLAIN_SECONDS = 5.0


class ProgressStage(Protocol):
    """A step of work that is under way."""

    def advance(self, amount: int = 1) -> None:
        """Say that `amount` more of the total is done."""


@contextlib.contextmanager
def run_stage(
    title: str, total: int | None = None, *, quiet: bool = False
) -> Iterator[ProgressStage]:
    """Show `title` until the block ends."""
    if quiet:
        yield SilentStage()
    elif _is_live():
        with _live(title, total) as stage:
            yield stage
    else:
        plain = PlainStage(title, total)
        yield plain
        plain.finish()


class SilentStage:
    """Says nothing."""

    def advance(self, amount: int = 1) -> None:
        """Nothing to show."""


class PlainStage:
    """One line at the start, one every few seconds, one at the end."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._total = total
        self._done = 0
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

    def finish(self) -> None:
        """Print how long it took."""
        _line(f"{self._title}: done in {time.monotonic() - self._start:.1f} s")


def _line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _is_live() -> bool:
    from gossamer.cli.shell.output import console

    screen = console(stderr=True)
    return screen.is_terminal and not screen.is_dumb_terminal


@contextlib.contextmanager
def _live(title: str, total: int | None) -> Iterator[ProgressStage]:
    from rich import progress

    from gossamer.cli.shell.output import console

    columns: list[progress.ProgressColumn] = [
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
    ]
    if total is not None:
        columns += [progress.BarColumn(), progress.TimeRemainingColumn()]
    columns.append(progress.TimeElapsedColumn())
    screen = console(stderr=True)
    start = time.monotonic()
    with progress.Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(title, total=total)

        class LiveStage:
            def advance(self, amount: int = 1) -> None:
                bar.advance(task, amount)

        yield LiveStage()
    screen.print(f"{title}: {time.monotonic() - start:.1f} s", markup=False, highlight=False)
