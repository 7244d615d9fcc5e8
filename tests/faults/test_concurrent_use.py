# SPDX-License-Identifier: Apache-2.0
"""Readers during a write and two writers at once (F26)."""

import subprocess
import sys
import threading

import pytest
from artifact_tools import names_in

from gossamer.errors import ResourceError
from gossamer.io import load, save
from gossamer.io.safe_files import directories
from gossamer.io.safe_files.directories import exclusive_lock
from gossamer.zoo import MLP

SIZES = ((4, 8, 2), (4, 12, 2))

WRITER = """
import sys, torch
from gossamer.io import save
from gossamer.zoo import MLP
torch.set_num_threads(1)
models = [MLP((4, 8, 2)), MLP((4, 12, 2))]
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    save(models[number % 2], sys.argv[1])
"""


@pytest.mark.parametrize("way", ["exchange", "two renames"])
def test_readers_see_the_old_or_the_new_artifact_and_never_an_error(tmp_path, way):
    path = tmp_path / "a"
    save(MLP(SIZES[0]), path)
    code = WRITER
    if way == "two renames":
        code = (
            "import gossamer.io.safe_files.directories as a\n"
            "a._exchange = lambda *_: False\n" + WRITER
        )
    seen, errors = set(), []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                seen.add(load(path).sizes)
            except Exception as error:
                errors.append(error)

    with subprocess.Popen([sys.executable, "-c", code, path, "60"], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"ready\n"
        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        code = run.wait(timeout=200)
        stop.set()
        for reader in readers:
            reader.join()
    assert code == 0
    assert errors == []
    assert seen == set(SIZES)
    assert names_in(tmp_path) == ["a"]


HOLDER = """
import sys, pathlib
from gossamer.io.safe_files.directories import exclusive_lock
with exclusive_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_writer_is_refused_until_the_first_ends_or_dies(tmp_path):
    path = tmp_path / "a"
    save(MLP(SIZES[0]), path)
    for dies in (False, True):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with holder:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(ResourceError, match="another process is writing"):
                save(MLP(SIZES[1]), path)
            assert load(path).sizes == SIZES[0]
            if dies:
                holder.kill()
            else:
                holder.stdin.write(b"\n")
        save(MLP(SIZES[0]), path)
        assert names_in(tmp_path) == ["a"]


def test_threads_of_one_process_exclude_each_other(tmp_path):
    with exclusive_lock(tmp_path / "a"), pytest.raises(ResourceError, match="is writing"):
        save(MLP(SIZES[0]), tmp_path / "a")


def test_many_threads_writing_end_with_one_whole_artifact(tmp_path):
    outcomes = []

    def write(size) -> None:
        for _ in range(10):
            try:
                save(MLP(size), tmp_path / "a")
                outcomes.append("written")
            except ResourceError:
                outcomes.append("refused")

    threads = [threading.Thread(target=write, args=(size,)) for size in SIZES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 20
    assert "written" in outcomes
    assert load(tmp_path / "a").sizes in SIZES
    assert names_in(tmp_path) == ["a"]
    assert directories.find_directory(tmp_path / "a") == tmp_path / "a"
