# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a recipe: every fault has a place, and all of them are told at once."""

from collections.abc import Iterable
from dataclasses import dataclass

from gossamer.errors import RecipeError
from gossamer.recipes.phrases import MAX_SHOWN, plain, show

__all__ = [
    "Fault",
    "Path",
    "RecipeFaults",
    "dotted",
]

MAX_FAULTS_SHOWN = 40


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
            shown = plain(part) if len(part) <= MAX_SHOWN else show(part)
            text += f".{shown}" if text else shown
    return text
