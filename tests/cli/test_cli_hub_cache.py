# SPDX-License-Identifier: Apache-2.0
"""owner/name means a model of the hub cache; nothing is ever fetched."""

import shutil
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "running"))
from text_models import save_encoder

from gossamer.cli.models import check_source, load_source
from gossamer.errors import ArtifactError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub cache as huggingface_hub lays it out: blobs, and links to them in a snapshot."""
    from huggingface_hub import constants

    def no_network(*args, **options):
        raise AssertionError("something was fetched")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    home = tmp_path / "hub" / "models--tiny--encoder"
    snapshot = home / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("a" * 40)
    (home / "blobs").mkdir()
    plain = save_encoder(tmp_path / "plain")
    for file in plain.iterdir():
        shutil.copy(file, home / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    return tmp_path


def test_a_cached_model_is_found(cache):
    source = load_source("tiny/encoder")
    assert type(source.model).__name__ == "BertModel"
    assert "tokenizer.json" in source.beside


def test_another_one_is_not_fetched(cache):
    with pytest.raises(ArtifactError, match="nothing is fetched unasked: hf download tiny/other"):
        check_source("tiny/other")


def test_a_folder_of_that_name_comes_first(cache, monkeypatch):
    (cache / "tiny").mkdir()
    shutil.copytree(cache / "plain", cache / "tiny" / "other")
    monkeypatch.chdir(cache)
    check_source("tiny/other")


def test_a_path_that_is_no_name_is_told_as_before(cache):
    with pytest.raises(ArtifactError) as error:
        check_source("some/deep/path")
    assert "hf download" not in str(error.value)
