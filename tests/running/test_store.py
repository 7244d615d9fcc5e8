# SPDX-License-Identifier: Apache-2.0
"""Packed engines in the cache: found again, and never trusted, never fatal."""

import os
import resource

import numpy as np
import pytest

from gossamer.running.store import EngineStore, Identity, Parts, files_digest
from gossamer.running.store import folder as folder_module

ME = Identity("abc", {"precision": "int8"})
ARRAYS = [np.arange(100, dtype=np.uint8), np.empty(0, np.uint8), np.ones(9_000_000, np.uint8)]
PARTS = Parts({"decoder": {"layers": [1, 2]}}, ARRAYS)


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path, monkeypatch, said):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    return EngineStore(said.append)


def the_file(tmp_path):
    (found,) = (tmp_path / "cache" / "engines").iterdir()
    return found


def test_what_was_kept_is_found_again(store, said, tmp_path):
    assert store.find(ME) is None
    store.keep(ME, PARTS)
    found = store.find(ME)
    assert found.told["decoder"] == PARTS.told["decoder"]
    assert all(np.array_equal(a, b) for a, b in zip(found.arrays, ARRAYS, strict=True))
    assert all(array.ctypes.data % 64 == 0 for array in found.arrays if array.nbytes)
    assert said == []
    assert the_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert the_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700


def test_nothing_but_the_same_is_found(store):
    store.keep(ME, PARTS)
    assert store.find(Identity("abd", ME.asked)) is None
    assert store.find(Identity("abc", {"precision": "int4"})) is None


def test_another_kernel_set_or_build_is_another_engine(store, monkeypatch):
    store.keep(ME, PARTS)
    monkeypatch.setenv("GOSSAMER_KERNELS", "reference")
    assert store.find(ME) is None
    monkeypatch.delenv("GOSSAMER_KERNELS")
    monkeypatch.setattr("gossamer.running.store.identity.native_digest", lambda: "another")
    assert store.find(ME) is None


@pytest.mark.parametrize("place", [0, 24, 40, 60, 4096, 4100, 5_000_000, -1, -200])
def test_a_flipped_bit_is_found_and_the_file_removed(store, said, tmp_path, place):
    store.keep(ME, PARTS)
    path = the_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert store.find(ME) is None
    assert len(said) == 1
    assert "not used" in said[0]
    assert "\n" not in said[0]
    assert not path.exists()
    store.keep(ME, PARTS)
    assert store.find(ME) is not None


@pytest.mark.parametrize("length", [0, 1, 71, 72, 4095, 4096, 5_000_000, -1])
def test_a_truncated_file_is_not_used(store, said, tmp_path, length):
    store.keep(ME, PARTS)
    path = the_file(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert store.find(ME) is None
    assert len(said) == 1


def test_a_file_under_the_name_of_another_is_not_used(store, said, tmp_path):
    store.keep(ME, PARTS)
    other = Identity("abd", ME.asked)
    path = the_file(tmp_path)
    path.rename(path.with_name(f"{other.key}.packed"))
    assert store.find(other) is None
    assert "another model" in said[0]


def test_what_others_may_write_is_not_used(store, said, tmp_path):
    store.keep(ME, PARTS)
    path = the_file(tmp_path)
    path.chmod(0o620)
    assert store.find(ME) is None
    assert "others may write" in said.pop()
    store.keep(ME, PARTS)
    path.parent.chmod(0o777)
    assert store.find(ME) is None
    assert "others may write" in said.pop()
    store.keep(ME, PARTS)  # nor is anything put there
    assert "not kept" in said.pop()


def test_what_belongs_to_another_user_is_not_used(store, said, tmp_path, monkeypatch):
    store.keep(ME, PARTS)
    if os.geteuid() == 0:
        os.chown(the_file(tmp_path), 12345, -1)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr("gossamer.running.store.folder.os.geteuid", lambda: other)
    assert store.find(ME) is None
    assert "another user" in said[0]


def test_a_link_in_the_place_of_a_file_is_not_followed(store, said, tmp_path):
    store.keep(ME, PARTS)
    path = the_file(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert store.find(ME) is None
    assert len(said) == 1
    assert (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_written_is_one_line(said, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "file"))
    store = EngineStore(said.append)
    store.keep(ME, PARTS)
    assert len(said) == 1
    assert "not kept" in said[0]
    assert store.find(ME) is None


def test_a_full_disk_leaves_nothing(store, said, tmp_path):
    # A limit of the process stands for a disk: writing behind it fails as ENOSPC does.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        store.keep(ME, PARTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert len(said) == 1
    assert "not kept" in said[0]
    assert list((tmp_path / "cache" / "engines").iterdir()) == []


def test_a_disk_without_room_is_told_before_writing(store, said, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "_free_bytes", lambda folder: 1 << 20)
    store.keep(ME, PARTS)
    assert len(said) == 1
    assert "room" in said[0]
    assert list((tmp_path / "cache" / "engines").iterdir()) == []


def test_the_cache_is_bounded_and_the_oldest_goes_first(tmp_path, monkeypatch, said):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GOSSAMER_CACHE_SIZE", "20M")
    store = EngineStore(said.append)
    first, second, third = (Identity(name, {}) for name in "abc")
    for age, identity in ((30, first), (20, second)):
        store.keep(identity, PARTS)
        path = tmp_path / "cache" / "engines" / f"{identity.key}.packed"
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    assert store.find(first) is not None  # is now the one that was used last
    store.keep(third, PARTS)
    found = [store.find(identity) is not None for identity in (first, second, third)]
    assert found == [True, False, True]
    monkeypatch.setenv("GOSSAMER_CACHE_SIZE", "0")
    assert EngineStore(said.append).find(first) is None


def test_what_a_killed_process_left_is_removed_later(store, tmp_path):
    store.keep(ME, PARTS)
    old, new = (the_file(tmp_path).with_name(f"{name}.unfinished") for name in ("old", "new"))
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (1, 1))
    store.keep(Identity("abd", {}), PARTS)
    assert not old.exists()
    assert new.exists()


def test_files_are_told_apart_by_content(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    for name in ("config.json", "model.safetensors", "1_Pooling/config.json"):
        (tmp_path / name).write_text("same")
    first = files_digest(tmp_path)
    for name in ("config.json", "model.safetensors", "1_Pooling/config.json"):
        path = tmp_path / name
        status = path.stat()
        path.write_text("sane")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert files_digest(tmp_path) != first, name
        path.write_text("same")
    assert files_digest(tmp_path) == first
    (tmp_path / "notes.md").write_text("nobody reads this")
    assert files_digest(tmp_path) == first
    assert files_digest(tmp_path / "missing") is None


def test_a_link_out_of_the_folder_has_no_digest(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (folder / "config.json").symlink_to(tmp_path / "secret.json")
    assert files_digest(folder) is None
