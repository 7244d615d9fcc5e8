# SPDX-License-Identifier: Apache-2.0
"""Hostile artifacts (F11, F13): refused with our error, without memory, without a trace."""

import json
import re
import subprocess
import sys
from pathlib import Path

import hostile_files
import pytest
from artifact_tools import contents, names_in
from hostile_files import BOMBS, CASES, HEADERS, MANIFESTS, make_good

from gossamer.errors import ArtifactError, GossamerError, ResourceError
from gossamer.io import load
from gossamer.io.safe_files.checks import available_bytes

SLOW_TO_WRITE = {"many-values", "many-escapes", "large"}


@pytest.fixture
def artifact(tmp_path):
    make_good(tmp_path / "a")
    return tmp_path / "a"


def refused(path: Path, kind: type[GossamerError]) -> str:
    before = contents(path)
    with pytest.raises(kind) as caught:
        load(path)
    assert contents(path) == before
    assert names_in(path.parent) == [path.name]
    text = str(caught.value)
    assert text.isascii()
    assert len(text) < 5000
    return text


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_header_is_refused(artifact, name):
    HEADERS[name](artifact)
    refused(artifact, ArtifactError)


@pytest.mark.parametrize("name", sorted(set(MANIFESTS) - SLOW_TO_WRITE))
def test_hostile_manifest_is_refused(artifact, name):
    MANIFESTS[name](artifact)
    refused(artifact, ArtifactError)


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_before_allocation_and_names_both_sizes(artifact, name):
    BOMBS[name](artifact)
    size = sum(p.stat().st_size for p in artifact.glob("*.safetensors"))
    text = refused(artifact, ResourceError)
    assert size < 1000
    assert f"{size} bytes on disk" in text
    needed = int(re.search(r"need (\d+) bytes of memory", text)[1])
    assert needed >= 4 * int(name.split("-")[1])
    assert "max_bytes=" in text


def test_max_bytes_is_obeyed(artifact):
    load(artifact, max_bytes=100_000)
    with pytest.raises(ResourceError, match="limit of 1000"):
        load(artifact, max_bytes=1000)
    assert 2**20 < available_bytes() <= 64 * 2**30


def test_all_of_them_stay_below_the_memory_limit(tmp_path):
    make_good(tmp_path / "good")
    for name, change in CASES.items():
        make_good(tmp_path / name)
        change(tmp_path / name)
    script = Path(hostile_files.__file__)
    run = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, timeout=200, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    result = json.loads(run.stdout)
    assert set(result["raised"]) == set(CASES)
    assert set(result["raised"].values()) == {"ArtifactError", "ResourceError"}
    assert result["growth"] < 200 * 2**20
