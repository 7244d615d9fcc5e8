# SPDX-License-Identifier: Apache-2.0
"""Writers that are killed (F2) or run out of disk (F7): the old artifact survives."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import writer_drill
from artifact_tools import contents, names_in
from warm_processes import run_script
from writer_drill import NEW, OLD

from gossamer.errors import ResourceError
from gossamer.io import load, save
from gossamer.io.safe_files import directories, tensors
from gossamer.zoo import MLP


def drill(name: str, folder: Path) -> tuple[list[dict], str]:
    run = run_script(writer_drill.__file__, name, folder)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()], run.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("way", ["kill", "two-renames"])
def test_a_killed_writer_leaves_the_old_or_the_new_artifact_whole(tmp_path, way):
    states, _ = drill(way, tmp_path)
    codes = [state["code"] for state in states]
    assert codes[-2:] == [0, 0]
    assert set(codes[:-2]) == {-9}
    # At least: mkdir, three files, folder, exchange, parent, clean-up; each before and after.
    assert len(codes) > 16
    sizes = [tuple(state["sizes"]) for state in states]
    assert set(sizes) == {OLD, NEW}
    assert sizes.index(NEW) > 8
    assert sizes == sorted(sizes, key=lambda size: size == NEW)
    assert all(state["after"] == [] for state in states)
    assert any(".tmp-" in name for state in states for name in state["beside"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_file_size_limit_leaves_the_old_artifact_and_nothing_else(tmp_path):
    states, errors = drill("limit", tmp_path)
    full, done = states[:-1], states[-1]
    assert done["code"] == 0
    assert tuple(done["sizes"]) == NEW
    assert [state["code"] for state in full] == [4] * len(full)
    assert all(tuple(state["sizes"]) == OLD for state in full)
    assert all(state["beside"] == [] for state in states)
    assert errors.count("file-size limit was reached; needed") == len(full)
    assert errors.count("bytes are free") == len(full)


def fails_at(function, call: int, code: int):
    count = 0

    def wrapper(*args, **kwargs):
        nonlocal count
        count += 1
        if count == call:
            raise OSError(code, os.strerror(code))
        return function(*args, **kwargs)

    return wrapper


def try_to_save(path: Path) -> str | None:
    try:
        save(MLP(NEW), path)
    except ResourceError as error:
        return str(error)
    return None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(tensors.HashingFile, "write"), (os, "fsync"), (Path, "mkdir"), (Path, "rename")],
)
def test_disk_trouble_at_every_call(tmp_path, monkeypatch, owner, name, code):
    path = tmp_path / "a"
    save(MLP(OLD), path)
    before = contents(path)
    original = getattr(owner, name)
    if name == "rename":
        monkeypatch.setattr(directories, "_exchange", lambda *_: False)
    for call in range(1, 60):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails_at(original, call, code))
            outcome = try_to_save(path)
        assert names_in(tmp_path) == ["a"]
        if outcome is None or "the new one is in place" in outcome:
            break
        assert "What was there before is unchanged" in outcome
        assert contents(path) == before
    assert call > 1
    assert load(path).sizes == NEW


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ResourceError, match="cannot be written"):
        save(MLP(OLD), tmp_path / "locked" / "a")


def test_too_little_space_is_found_before_the_first_byte(tmp_path, monkeypatch):
    save(MLP(OLD), tmp_path / "a")
    before = contents(tmp_path / "a")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3000))
    with pytest.raises(ResourceError, match=r"needed \d+ bytes.*free 3000"):
        save(MLP(NEW), tmp_path / "a")
    assert contents(tmp_path / "a") == before
