# SPDX-License-Identifier: Apache-2.0
"""Nothing is read that was not named: links out of a directory, pipes, folders, devices."""

import os
import socket
from pathlib import Path

import pytest

from gossamer.errors import ArtifactError, InputError
from gossamer.named_files import is_inside, open_inside, open_named, read_inside, read_named

SECRET = b"the password is 1234"


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "own").write_bytes(b"own")
    return path


def refused(folder, name, text):
    with pytest.raises(ArtifactError, match=text) as caught:
        open_inside(folder, name)
    assert SECRET.decode() not in str(caught.value)
    return str(caught.value)


def test_files_and_links_inside_of_the_directory_are_read(folder, tmp_path):
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_bytes(b"deep")
    (folder / "link").symlink_to("own")
    (folder / "absolute").symlink_to(folder / "deep" / "file")
    (folder / "up").symlink_to("deep/../own")
    (tmp_path / "alias").symlink_to(folder)
    for root in (folder, tmp_path / "alias", os.path.relpath(folder)):
        assert read_inside(root, "own", 10) == b"own"
        assert read_inside(root, "deep/file", 10) == b"deep"
        assert read_inside(root, "link", 10) == b"own"
        assert read_inside(root, "absolute", 10) == b"deep"
        assert read_inside(root, "up", 10) == b"own"
    assert is_inside(folder, "link")
    assert not is_inside(folder, "other")
    with pytest.raises(ArtifactError, match="larger than 3"):
        read_inside(folder, "deep/file", 3)


def test_a_link_that_leads_out_is_refused_by_name_with_a_cure(folder, secret):
    (folder / "link").symlink_to(secret)
    message = refused(folder, "link", "outside of the directory")
    assert str(folder / "link") in message
    assert str(secret) in message
    assert "blobs" in message
    assert "cp -L" in message
    with pytest.raises(InputError, match="outside of the directory"):
        open_inside(folder, "link", InputError)


@pytest.mark.parametrize("target", ["/proc/self/environ", "/etc/passwd", "..", "/", "../model2/x"])
def test_other_links_that_lead_out(folder, tmp_path, target):
    (tmp_path / "model2").mkdir()
    (tmp_path / "model2" / "x").write_bytes(SECRET)
    (folder / "link").symlink_to(target)
    refused(folder, "link", "outside of the directory")


def test_links_of_links_and_folders_that_are_links(folder, secret, tmp_path):
    (folder / "first").symlink_to("second")
    (folder / "second").symlink_to(secret)
    (folder / "dir").symlink_to(tmp_path)
    for name in ("first", "dir/secret"):
        refused(folder, name, "outside of the directory")
    (folder / "loop").symlink_to("loop")
    refused(folder, "loop", "cannot be opened|a link")
    (folder / "dangling").symlink_to("nothing")
    refused(folder, "dangling", "missing")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", "a/../../secret", "a\\b", "a\0b"])
def test_names_that_lead_out(folder, secret, name):
    refused(folder, name, "names no file")


def hub(tmp_path, name="models--org--name"):
    """The cache of the hub: a snapshot of links to blobs."""
    repository = tmp_path / name
    snapshot = repository / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "0f").write_bytes(b"blob")
    (snapshot / "config.json").symlink_to("../../blobs/0f")
    return snapshot


def test_the_cache_of_the_hub_is_made_of_links(tmp_path):
    snapshot = hub(tmp_path)
    assert read_inside(snapshot, "config.json", 10) == b"blob"
    (snapshot / "onnx").mkdir()
    (snapshot / "onnx" / "weights").symlink_to("../../../blobs/0f")
    assert read_inside(snapshot / "onnx", "weights", 10) == b"blob"
    (tmp_path / "refs").symlink_to(snapshot)
    assert read_inside(tmp_path / "refs", "config.json", 10) == b"blob"


def test_only_the_blobs_of_the_own_repository(tmp_path, secret):
    snapshot = hub(tmp_path)
    other = hub(tmp_path, "models--org--other")
    for number, target in enumerate((
        secret, "../../blobs/../../secret", "../../refs", "../other/x", "../../blobs",
        other.parent.parent / "blobs" / "0f",
    )):  # fmt: skip
        (snapshot / f"link{number}").symlink_to(target)
        refused(snapshot, f"link{number}", "outside of the directory")


def test_what_only_looks_like_the_cache(tmp_path, secret):
    plain = hub(tmp_path, "some-folder")
    refused(plain, "config.json", "outside of the directory")
    # Blobs that are themselves a link to somewhere else.
    snapshot = hub(tmp_path)
    blobs = snapshot.parent.parent / "blobs"
    (blobs / "0f").unlink()
    blobs.rmdir()
    blobs.symlink_to(tmp_path)
    (snapshot / "link").symlink_to("../../blobs/secret")
    refused(snapshot, "link", "outside of the directory")


def test_pipes_folders_and_sockets_are_refused_and_nothing_hangs(folder, tmp_path):
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(folder)
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        for name, kind in (("pipe", "a pipe"), ("folder", "a folder"), ("socket", "a socket")):
            refused(folder, name, f"is {kind}, no regular file")
            with pytest.raises(ArtifactError, match=f"is {kind}"):
                open_named(folder / name)
    with pytest.raises(InputError, match="is a device"):
        open_named("/dev/zero", InputError)
    (folder / "device").symlink_to("/dev/zero")
    refused(folder, "device", "outside")


def test_what_was_checked_is_what_is_opened(folder, secret, monkeypatch):
    """Somebody puts a link into the place of the file right after it was looked at."""
    resolve = os.path.realpath

    def swapped(path, **options):
        found = resolve(path, **options)
        if Path(found).name == "own":
            (folder / "own").unlink(missing_ok=True)
            (folder / "own").symlink_to(secret)
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    refused(folder, "own", "is a link")


def test_a_folder_on_the_way_that_becomes_a_link(folder, secret, tmp_path, monkeypatch):
    (folder / "deep").mkdir()
    (folder / "deep" / "secret").write_bytes(b"harmless")
    resolve = os.path.realpath

    def swapped(path, **options):
        found = resolve(path, **options)
        if Path(found).name == "secret" and not (folder / "deep").is_symlink():
            (folder / "deep" / "secret").unlink()
            (folder / "deep").rmdir()
            (folder / "deep").symlink_to(tmp_path)
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    refused(folder, "deep/secret", "cannot be opened")


def test_a_file_that_the_user_names_is_read_as_named(tmp_path, secret):
    (tmp_path / "link").symlink_to(secret)
    assert read_named(tmp_path / "link", 100) == SECRET
    with pytest.raises(ArtifactError, match="no such file"):
        read_named(tmp_path / "nothing", 100)
    with pytest.raises(ArtifactError, match="larger than 3"):
        read_named(secret, 3)
    with pytest.raises(InputError, match="cannot be opened"):
        read_named("a\0b", 3, InputError)


def test_a_large_limit_costs_nothing(secret, monkeypatch):
    """Python reserves as much as it is asked to read."""
    assert read_named(secret, 2**62) == SECRET
