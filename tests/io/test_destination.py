# SPDX-License-Identifier: Apache-2.0
"""What cannot be written is refused beforehand, and nothing is left behind."""

import os
from pathlib import Path

import pytest

import gossamer
from gossamer.errors import ArtifactError, ResourceError
from gossamer.io.artifact.destination import check_destination, check_file_destination
from gossamer.zoo import MLP


def test_new_folders_and_old_artifacts_are_fine(tmp_path):
    gossamer.save(MLP((4, 4, 2)), tmp_path / "old")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name in ("new", "old", "empty", "missing/parents/new"):
        check_destination(tmp_path / name)
    check_file_destination(tmp_path / "missing" / "x.html")
    with pytest.raises(ResourceError, match=r"there is no folder .*missing"):
        check_file_destination(tmp_path / "missing" / "x.npy", makes_parents=False)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_lies_there_already(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "deep")
    for name, message in (("file", "is not a directory"), ("full", "not a gossamer artifact")):
        with pytest.raises(ArtifactError, match=message):
            check_destination(tmp_path / name)
    for check in (check_destination, check_file_destination):
        with pytest.raises(ResourceError, match=r"file is a file, not a folder"):
            check(tmp_path / "file" / "below" / "out")
    with pytest.raises(ResourceError, match="is a folder; expected the name of a file"):
        check_file_destination(tmp_path / "full")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_may_not_be_written(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(ResourceError, match="Permission denied"):
        check_destination(locked / "out")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_file_systems_that_take_nothing():
    with pytest.raises(ResourceError, match="nothing can be made in /proc"):
        check_destination(Path("/proc/out"))
