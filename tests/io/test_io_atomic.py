# SPDX-License-Identifier: Apache-2.0
"""Directories appear whole or not at all, and only ours are ever replaced."""

from pathlib import Path

import pytest
from artifact_tools import contents, names_in

from gossamer.errors import ArtifactError, ResourceError
from gossamer.io import load, save
from gossamer.io.safe_files import directories
from gossamer.io.safe_files.directories import find_directory, replace_directory
from gossamer.zoo import MLP


def anything(_: Path) -> None:
    """Everything may be replaced."""


def write(path: Path, text: str) -> None:
    with replace_directory(path, 10, anything) as folder:
        (folder / "f").write_text(text)


@pytest.fixture(params=["exchange", "two renames"])
def way(request, monkeypatch):
    """Both ways to publish: the system call, and what is used where it does not exist."""
    if request.param == "two renames":
        monkeypatch.setattr(directories, "_exchange", lambda *_: False)
    return request.param


def test_new_and_replaced(tmp_path, way):
    write(tmp_path / "a", "one")
    assert (tmp_path / "a" / "f").read_text() == "one"
    write(tmp_path / "a", "two")
    assert (tmp_path / "a" / "f").read_text() == "two"
    assert names_in(tmp_path) == ["a"]


def test_exchange_exists_on_linux(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x").touch()
    assert directories._exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "x").exists()


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_failure_leaves_the_old_one_and_nothing_else(tmp_path, way, error):
    write(tmp_path / "a", "one")

    def write_and_fail():
        with replace_directory(tmp_path / "a", 10, anything) as folder:
            (folder / "f").write_text("two")
            raise error

    with pytest.raises(type(error)):
        write_and_fail()
    assert (tmp_path / "a" / "f").read_text() == "one"
    assert names_in(tmp_path) == ["a"]


def test_failure_between_the_two_renames_is_taken_up(tmp_path, monkeypatch):
    write(tmp_path / "a", "one")
    monkeypatch.setattr(directories, "_exchange", lambda *_: False)
    rename, calls = Path.rename, []

    def dies_in_between(self, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", dies_in_between)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a", "two")
    monkeypatch.setattr(Path, "rename", rename)
    assert not (tmp_path / "a").exists()
    assert (find_directory(tmp_path / "a") / "f").read_text() == "one"
    with pytest.raises(ValueError, match="stop"), replace_directory(tmp_path / "a", 1, anything):
        raise ValueError("stop")
    assert (tmp_path / "a" / "f").read_text() == "one"
    assert names_in(tmp_path) == ["a"]


def test_leftovers_of_dead_writers_are_removed_and_nothing_else(tmp_path):
    write(tmp_path / "a", "one")
    dead = tmp_path / f"a.tmp-{'0' * 32}"
    dead.mkdir()
    (dead / "manifest.json").write_text("{}")
    kept = [tmp_path / f"ab.tmp-{'0' * 32}", tmp_path / "a.tmp-mine", tmp_path / "a.old-backup"]
    for folder in kept:
        folder.mkdir()
    assert find_directory(tmp_path / "a") == tmp_path / "a"
    write(tmp_path / "a", "two")
    assert not dead.exists()
    assert all(folder.exists() for folder in kept)


def test_second_writer_is_refused_and_the_first_finishes(tmp_path):
    with replace_directory(tmp_path / "a", 10, anything) as folder:
        (folder / "f").write_text("first")
        with pytest.raises(ResourceError, match="another process is writing"):
            write(tmp_path / "a", "second")
        write(tmp_path / "b", "other targets are free")
    assert (tmp_path / "a" / "f").read_text() == "first"
    assert names_in(tmp_path) == ["a", "b"]


def test_no_space_is_refused_before_anything_is_written(tmp_path):
    with (
        pytest.raises(ResourceError, match=r"needed \d+ bytes.*free \d+"),
        replace_directory(tmp_path / "a", 2**60, anything),
    ):
        pytest.fail("must not be reached")
    assert names_in(tmp_path) == []


def test_a_link_to_an_artifact_is_followed(tmp_path):
    save(MLP((2, 2)), tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    save(MLP((2, 3)), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "real").sizes == (2, 3)


def foreign_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


def foreign_file(path: Path) -> None:
    path.write_text("years of work")


def foreign_file_in_artifact(path: Path) -> None:
    save(MLP((2, 2)), path)
    (path / "thesis.txt").write_text("years of work")


def foreign_manifest(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text('{"format": "chrome-extension"}')


def damaged_manifest(path: Path) -> None:
    save(MLP((2, 2)), path)
    (path / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    "make",
    [foreign_folder, foreign_file, foreign_file_in_artifact, foreign_manifest, damaged_manifest],
)
def test_what_we_did_not_write_is_never_deleted(tmp_path, make):
    path = tmp_path / "a"
    make(path)
    before = path.read_bytes() if path.is_file() else contents(path)
    with pytest.raises(ArtifactError, match="left alone"):
        save(MLP((2, 3)), path)
    assert (path.read_bytes() if path.is_file() else contents(path)) == before
    assert names_in(tmp_path) == ["a"]


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "a").mkdir()
    save(MLP((2, 2)), tmp_path / "a")
    save(MLP((2, 3)), tmp_path / "a")
    assert load(tmp_path / "a").sizes == (2, 3)


def test_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResourceError, match="cannot be written"):
        save(MLP((2, 2)), tmp_path / "file" / "a")
