# SPDX-License-Identifier: Apache-2.0
"""The table of readers: what one is given, how a case is read, which source lines count.

To add one: write seeds with the package's own writers, a function that reads a case, and the files
of the reader. A reader returns or raises a GossamerError; anything else is a fault.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutations import Files, change_files, rehash

import gossamer
from gossamer.errors import GossamerError

for _folder in ("io", "models", "running"):
    sys.path.append(str(Path(__file__).parents[1] / _folder))

SOURCE = Path(gossamer.__file__).parent
TEXTS = ("the dog runs", "a red house and the moon", "zzz é \U0001f600")


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        name: for the command line.
        seeds: writes good inputs into a folder: every folder in it is one.
        read: reads the files of a case, which lie in a folder.
        sources: files below src/gossamer whose line coverage is told; `file.py:one two` counts
            these functions only, where a file holds a writer too.
        change: makes a case of a seed.
        megabytes: a case may take so much more memory than the process had before.
    """

    name: str
    seeds: Callable[[Path], None]
    read: Callable[[Path], object]
    sources: tuple[str, ...]
    change: Callable[[Files, random.Random], Files] = change_files
    megabytes: int = 256

    @property
    def functions(self) -> dict[Path, set[str] | None]:
        """The reader's source files and its functions in them; None for all."""
        found: dict[Path, set[str] | None] = {}
        for source in self.sources:
            name, _, names = source.partition(":")
            for path in sorted(SOURCE.glob(name)):
                found[path] = set(names.split()) or None
        return found


TARGETS: dict[str, Target] = {}


def target(name: str, seeds: Callable[[Path], None], *sources: str, **more: Any) -> Any:
    """Put a reader into the table."""

    def add(read: Callable[[Path], object]) -> Callable[[Path], object]:
        TARGETS[name] = Target(name, seeds, read, sources, **more)
        return read

    return add


def with_hashes(files: Files, draw: random.Random) -> Files:
    """Most cases get the right digests again, so that what comes after them is reached."""
    changed = change_files(files, draw)
    return rehash(changed) if draw.random() < 0.8 else changed


def tried(read: Callable[[], object]) -> object:
    """What a reader gave or refused with: it is not the last one of its case."""
    try:
        return read()
    except GossamerError as error:
        return error


def only(folder: Path) -> Path:
    """The one file of a case."""
    return next(iter(sorted(folder.iterdir())), folder / "missing.txt")
