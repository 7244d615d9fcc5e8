# SPDX-License-Identifier: Apache-2.0
"""A reader beside a writer, at whatever moment of the reader the writer takes its steps.

Threads that race find such an order once in thousands of runs, and then on somebody else's
machine. Here the writer's steps are done inside the reader, before its i-th look at the disk.
"""

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gossamer.io import read_beside, save
from gossamer.io.artifact import find_artifact, open_artifact
from gossamer.io.safe_files import directories
from gossamer.zoo import MLP

LOOKS = ("stat", "lstat", "open", "listdir", "scandir")
SIZES = ((4, 8, 2), (4, 12, 2), (4, 16, 2))


@contextmanager
def before_each_look(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act(i)` before the i-th time this process looks at the disk."""
    count = itertools.count()
    acting = False

    def watched(original):
        def look(*args, **kwargs):
            nonlocal acting
            if not acting:
                acting = True
                act(next(count))
                acting = False
            return original(*args, **kwargs)

        return look

    with pytest.MonkeyPatch.context() as patch:
        for name in LOOKS:
            patch.setattr(os, name, watched(getattr(os, name)))
        yield


class Replacements:
    """The steps of a writer that replaces `path` by each of the other artifacts in turn."""

    def __init__(self, folder: Path, way: str, originals: list[Path]) -> None:
        self.path = folder / "a"
        shutil.copytree(originals[0], self.path)
        self._steps = []
        for number, original in enumerate(originals[1:]):
            fresh = folder / f"a.tmp-{number:032x}"
            shutil.copytree(original, fresh)
            if way == "exchange":
                doomed = fresh
                self._steps.append(partial(directories._exchange, fresh, self.path))
            else:
                doomed = folder / f"a.old-{number:032x}"
                self._steps.append(partial(self.path.rename, doomed))
                self._steps.append(partial(fresh.rename, self.path))
            self._steps.append((doomed / "manifest.json").unlink)
            self._steps.append(partial(shutil.rmtree, doomed))

    def do_next(self) -> None:
        if self._steps:
            self._steps.pop(0)()


def open_and_read(path: Path) -> int:
    with open_artifact(path) as artifact:
        return sum(array.numel() for array in artifact.read().values())


def is_artifact(path: Path) -> bool:
    return find_artifact(path)[1]


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    for number, sizes in enumerate(SIZES):
        save(MLP(sizes), folder / str(number), beside={"vocab.txt": b"word"})
    return [folder / str(number) for number in range(len(SIZES))]


READERS = {"find": is_artifact, "open": open_and_read, "beside": read_beside}


@pytest.fixture(params=READERS)
def read(request):
    return READERS[request.param]


@pytest.fixture(params=["exchange", "two renames"])
def way(request):
    return request.param


def read_with_steps_at(places: list[int], read, folder: Path, way: str, originals: list[Path]):
    """What `read` gives if the writer's n-th step is done before the reader's look places[n]."""
    writer = Replacements(folder, way, originals)

    def act(look: int) -> None:
        for _ in range(places.count(look)):
            writer.do_next()

    try:
        with before_each_look(act):
            return read(writer.path)
    finally:
        for left in folder.iterdir():
            shutil.rmtree(left)


def test_one_replacement_at_every_moment(tmp_path, originals, read, way):
    right = [read(original) for original in originals[:2]]
    looks: list[int] = []
    with before_each_look(looks.append):
        read(originals[0])
    for first, *gaps in itertools.product(looks, *[(0, 1, 3)] * 3):
        places = list(itertools.accumulate([first, *gaps]))
        found = read_with_steps_at(places, read, tmp_path, way, originals[:2])
        assert found in right, places


def test_a_second_replacement_while_the_first_is_read(tmp_path, originals, read, way):
    right = [read(original) for original in originals]
    chance = random.Random(7)  # noqa: S311
    for _ in range(200):
        gaps = [chance.choice((0, 0, 1, 1, 2, 3, 5, 8, 13)) for _ in range(7)]
        places = list(itertools.accumulate([chance.randrange(12), *gaps]))
        found = read_with_steps_at(places, read, tmp_path, way, originals)
        assert found in right, places
