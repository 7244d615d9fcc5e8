# SPDX-License-Identifier: Apache-2.0
"""What a command shows: one JSON document or tables on stdout, everything else on stderr.

Progress of long work is a live line with ETA on a terminal, and plain lines elsewhere.

Errors are shown as a message and an exit code: 0 ok, 2 usage or recipe, 3 artifact refused, 4
resource or goal not reachable, 5 distributed failure, 130 interrupted, 143 terminated; 1 is a bug
of gossamer.
"""

import errno
import json
import math
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gossamer.errors import GossamerError, ResourceError
from gossamer.out_of_memory import is_out_of_memory
from gossamer.plain_data import map_leaves

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from gossamer.report import Comparison

SCHEMA = 1
# A table in a log file should not be folded as if it were a narrow terminal.
_PIPE_WIDTH = 140
# How often a pipe or a log file gets a line while a stage runs.
PLAIN_SECONDS = 5.0


class Verbatim(str):
    """Text that is shown as it is: a file or JSON, never folded to the width of a terminal."""


class ProgressStage:
    """A step of work that is under way; this one says nothing."""

    def advance(self, amount: int = 1) -> None:
        """Say that `amount` more of the total is done."""


@contextmanager
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


@contextmanager
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


@dataclass
class Output:
    """How one run of a command speaks.

    Attributes:
        command: its full name, such as "bench linear".
        json: stdout gets exactly one JSON document and nothing else.
        quiet: no progress and no notes; the result is still shown.
    """

    command: str
    json: bool = False
    quiet: bool = False
    _document: dict[str, Any] = field(default_factory=dict)
    _shown: list["RenderableType"] = field(default_factory=list)

    def result(self, document: Mapping[str, Any], *shown: "RenderableType") -> None:
        """Set what the command gives: data for --json, and what people read instead."""
        self._document = dict(document)
        self._shown = list(shown)

    def silence(self) -> None:
        """Say nothing: another process of the same run speaks."""
        self.quiet, self.json, self._shown = True, False, []

    def note(self, text: str) -> None:
        """A line for people, on stderr, unless quiet."""
        if not self.quiet:
            console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)

    def stage(self, title: str, total: int | None = None) -> AbstractContextManager[ProgressStage]:
        """Progress of one step of long work: a live line on a terminal, plain lines elsewhere."""
        return run_stage(title, total, None if self.quiet else console(stderr=True))

    def guard_stdout(self) -> AbstractContextManager[object]:
        """Keep stdout clean while a command works: what libraries print goes to stderr."""
        return redirect_stdout(sys.stderr) if self.json else nullcontext()

    def flush(self) -> None:
        """Write the result."""
        if self.json:
            write_json(self.command, self._document)
            return
        for item in self._shown:
            if isinstance(item, Verbatim):
                sys.stdout.write(item)
            else:
                console().print(item, markup=False, highlight=False)


def comparison_table(comparison: "Comparison") -> "Table":
    """Models side by side, one line per figure."""
    head, *rows = comparison.cells()
    return table(head[0], *(f">{text}" for text in head[1:]), rows=rows)


def console(stderr: bool = False) -> "Console":
    """A console on today's stdout or stderr; honours NO_COLOR, TERM and COLUMNS."""
    from rich.console import Console

    made = Console(stderr=stderr, emoji=False)  # "n:m:g" is no picture
    if not made.is_terminal:
        made.width = max(made.width, _PIPE_WIDTH)
    return made


def table(*columns: str, rows: Iterable[Iterable[str]] = ()) -> "Table":
    """A table without frames; a column that starts with '>' is set to the right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(
            column.lstrip(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        made.add_row(*row)
    return made


def write_json(command: str, document: Mapping[str, Any]) -> None:
    """Print the one document of a --json run."""
    content = {"schema": SCHEMA, "command": command, **document}
    sys.stdout.write(json.dumps(map_leaves(content, _plain), indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """Only what JSON has: no infinities, no paths."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, int | float | str) else str(value)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Failure(NamedTuple):
    """What to tell a user about an exception."""

    type: str
    message: str
    exit_code: int


def tell_failure(error: BaseException, arguments: Sequence[str], command: str) -> int:
    """Say on stderr, and as the document of --json, why `command` failed; its exit code."""
    failure = explain_failure(error)
    if "--debug" in arguments:
        traceback.print_exception(error, file=sys.stderr)
    click.echo(f"gossamer: {failure.message}", err=True)
    if "--json" in arguments:
        write_json(command, {"error": failure._asdict()})
    return failure.exit_code


def explain_failure(error: BaseException) -> Failure:
    """The message and exit code of anything a command can raise."""
    if isinstance(error, GossamerError):
        return Failure(type(error).__name__, str(error), error.exit_code)
    if isinstance(error, click.ClickException):
        ctx = getattr(error, "ctx", None)
        hint = "" if ctx is None else f" See '{ctx.command_path} --help'."
        return Failure("UsageError", f"{error.format_message()}{hint}", error.exit_code)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Failure("Interrupted", "interrupted; nothing was left half-written.", 130)
    if is_out_of_memory(error):
        text = f"out of memory ({error}). Close other programs, or use a smaller model."
        return Failure("OutOfMemory", text, ResourceError.exit_code)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        kind, advice = type(error).__name__, "Check the path and its permissions."
        if error.errno in _FULL:
            kind, advice = "ResourceError", "Free some space or choose another folder."
        text = f"{where}{error.strerror or error}. {advice}"
        return Failure(kind, text, ResourceError.exit_code)
    text = f"this is a bug of gossamer ({type(error).__name__}: {error})."
    return Failure("Bug", f"{text} Run again with --debug and report the traceback.", 1)
