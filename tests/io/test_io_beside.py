# SPDX-License-Identifier: Apache-2.0
"""Tokenizer files and the like: carried along as bytes, hashed, verified, never interpreted."""

import json

import pytest
import torch
from artifact_tools import edit_manifest, names_in, rehash
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io import load, read_beside, save
from gossamer.io.artifact.beside import BESIDE_FILES, beside_limit

# Neither JSON nor UTF-8: nobody may look inside.
FILES = {"tokenizer.json": b"\xff\x00{[", "vocab.txt": b"", "merges.txt": b"a b\n"}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("form", ["packed", "dense"])
def test_files_go_along_and_are_listed(tmp_path, model, form):
    save(model, tmp_path / "a", format=form, beside=FILES)
    for name, raw in FILES.items():
        assert (tmp_path / "a" / name).read_bytes() == raw
    listed = json.loads((tmp_path / "a" / "manifest.json").read_text())["files"]
    assert set(FILES) < set(listed)
    assert read_beside(tmp_path / "a") == FILES
    assert torch.equal(load(tmp_path / "a")[0].weight, model[0].weight)
    save(model, tmp_path / "a", format=form)
    assert not set(FILES) & set(names_in(tmp_path / "a"))


def test_every_name_of_the_list_can_be_saved(tmp_path, model):
    files = {name: name.encode() for name in BESIDE_FILES}
    save(model, tmp_path / "a", beside=files)
    load(tmp_path / "a")
    assert read_beside(tmp_path / "a") == files


@pytest.mark.parametrize("change", [b"\xff\x00{]", b"\xff\x00{[ ", b""])
def test_a_changed_file_is_refused(tmp_path, model, change):
    save(model, tmp_path / "a", beside=FILES)
    (tmp_path / "a" / "tokenizer.json").write_bytes(change)
    for read in (load, read_beside):
        with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
            read(tmp_path / "a")


def test_a_missing_file_or_a_link_is_refused(tmp_path, model):
    save(model, tmp_path / "a", beside=FILES)
    (tmp_path / "a" / "vocab.txt").unlink()
    with pytest.raises(ArtifactError, match=r"missing \['vocab.txt'\]"):
        load(tmp_path / "a")
    (tmp_path / "secret").write_bytes(b"")
    (tmp_path / "a" / "vocab.txt").symlink_to(tmp_path / "secret")
    for read in (load, read_beside):
        with pytest.raises(ArtifactError, match="is a link"):
            read(tmp_path / "a")


def test_readme_and_card_may_not_be_listed(tmp_path, model):
    save(model, tmp_path / "a", beside=FILES)
    (tmp_path / "a" / "README.md").write_text("x")
    load(tmp_path / "a")
    edit_manifest(tmp_path / "a", lambda c: c["files"].update({"README.md": {}}))
    rehash(tmp_path / "a")
    with pytest.raises(ArtifactError, match="may not list"):
        load(tmp_path / "a")


def test_files_that_people_put_there_go_along_unverified(tmp_path, model):
    save(model, tmp_path / "a", beside={"vocab.txt": b"1"})
    (tmp_path / "a" / "merges.txt").write_bytes(b"2")
    assert read_beside(tmp_path / "a") == {"vocab.txt": b"1", "merges.txt": b"2"}


@pytest.mark.parametrize(
    "files",
    [{"config.json": b""}, {"../tokenizer.json": b""}, {"setup.py": b""}, {"vocab.txt": "text"}],
)
def test_other_names_and_types_are_refused(tmp_path, model, files):
    with pytest.raises(InputError, match="beside"):
        save(model, tmp_path / "a", beside=files)
    assert not (tmp_path / "a").exists()


def test_only_known_regular_files_of_a_directory_are_read(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "vocab.json").write_bytes(b"1")
    (folder / "modeling.py").write_bytes(b"2")
    (folder / "vocab.txt").symlink_to("vocab.json")
    assert read_beside(folder) == {"vocab.json": b"1", "vocab.txt": b"1"}
    with (folder / "merges.txt").open("wb") as file:
        file.truncate(beside_limit("tokenizer.json") + 1)
    with pytest.raises(ArtifactError, match="larger than"):
        read_beside(folder)
    assert read_beside(folder / "vocab.json") == {}
