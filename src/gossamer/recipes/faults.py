# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a recipe: every fault has a place, and all of them are told at once."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.errors import RecipeError

MAX_FAULTS_SHOWN = 40
_MAX_SHOWN = 60

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        source: the file, the built-in recipe or the `--set` it stands in.
        line: counted from 1; None where there are no lines.
        path: dotted, such as "stages[0].prune.method"; empty for the file as a whole.
        message: what is wrong, what is expected, what to do.
    """

    source: str
    line: int | None
    path: str
    message: str

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place} {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class RecipeFaults(RecipeError):
    """All faults of one recipe."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        shown = [str(fault) for fault in self.faults[:MAX_FAULTS_SHOWN]]
        more = len(self.faults) - len(shown)
        super().__init__("\n".join(shown + ([f"and {more} more faults."] if more else [])))


def dotted(path: Path) -> str:
    """`stages[0].prune.method`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = plain(part) if len(part) <= _MAX_SHOWN else show(part)
            text += f".{shown}" if text else shown
    return text


def show(value: Any) -> str:
    """A value from a file, safe to print: ASCII, quoted, not too long."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def plain(text: str) -> str:
    """A word or path without quotes, safe to print."""
    return text if text.isprintable() else ascii(text)[1:-1]


def near(word: Any, known: Sequence[str]) -> str:
    """` Did you mean 'wanda'?`, or nothing if no known word is like it."""
    found = difflib.get_close_matches(str(word).lower(), known, n=1)
    return f" Did you mean {found[0]!r}?" if found else ""
