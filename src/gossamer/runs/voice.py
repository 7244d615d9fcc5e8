# SPDX-License-Identifier: Apache-2.0
"""How a run speaks to whoever started it: the command line, a notebook, or nobody."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from gossamer.errors import ResourceError
from gossamer.training.loop.endings import TrainingStopped

Say = Callable[[str], None]


class Progress(Protocol):
    """The progress of one step of long work."""

    def advance(self) -> None:
        """One more part is done."""


class Voice(Protocol):
    """What a run tells on its way; `gossamer.cli` shows it on a terminal."""

    def note(self, text: str) -> None:
        """Tell people a line."""

    def stage(self, title: str, total: int | None = None) -> AbstractContextManager[Progress]:
        """A step of long work begins, of so many parts."""


@dataclass
class Quiet:
    """A voice without progress; lines go to `say`, or nowhere."""

    say: Say | None = None

    def note(self, text: str) -> None:
        """Tell people a line."""
        if self.say is not None:
            self.say(text)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator["Quiet"]:
        """Nothing is shown."""
        yield self

    def advance(self) -> None:
        """Nothing is shown."""


@contextmanager
def told_how_to_resume(how: str) -> Iterator[None]:
    """Add how to resume to what ends a run whose state is kept."""
    try:
        yield
    except TrainingStopped as error:
        raise TrainingStopped(f"{error} Go on with:\n  {how}", error.exit_code - 128) from error
    except ResourceError as error:
        raise ResourceError(f"{error}\nGo on with:\n  {how}") from error
