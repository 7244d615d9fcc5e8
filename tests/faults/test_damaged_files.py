# SPDX-License-Identifier: Apache-2.0
"""Truncation (F9) and bit flips (F10) of every file: refused by name, or provably harmless."""

import random
from pathlib import Path

import pytest
import torch
from artifact_tools import assert_same_model, force_format, sparse_linear
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io import load, save

FLIPS = 300


def model() -> nn.Sequential:
    return nn.Sequential(
        sparse_linear("nm", "masked"),
        nn.ReLU(),
        nn.Linear(24, 256),
        sparse_linear("csr", "compact"),
    ).eval()


@pytest.fixture
def artifact(tmp_path):
    torch.manual_seed(0)
    save(model(), tmp_path / "a", report={"sparsity": 0.5}, recipe="stages: []")
    return tmp_path / "a"


def header_end(raw: bytes) -> int:
    return 8 + int.from_bytes(raw[:8], "little")


def test_truncated_files_are_refused_by_name(artifact):
    names = [path.name for path in artifact.iterdir() if path.name != "card.md"]
    assert len(names) == 3
    for name in names:
        path = artifact / name
        raw = path.read_bytes()
        cuts = {0, 1, 7, 8, len(raw) // 2, len(raw) - 1}
        if name.endswith(".safetensors"):
            cuts |= {header_end(raw) - 1, header_end(raw)}
        for cut in sorted(cuts):
            path.write_bytes(raw[:cut])
            with pytest.raises(ArtifactError) as caught:
                load(artifact)
            assert name in str(caught.value)
            if name != "manifest.json":
                assert f"{len(raw)} bytes" in str(caught.value)
                assert f"{cut} bytes" in str(caught.value)
        path.write_bytes(raw)
    load(artifact)


def test_missing_files_are_refused_by_name(artifact):
    for path in list(artifact.iterdir()):
        raw = path.read_bytes()
        path.unlink()
        if path.name == "card.md":
            load(artifact)
        else:
            with pytest.raises(ArtifactError):
                load(artifact)
        path.write_bytes(raw)


def flip(path: Path, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


def test_no_flipped_bit_loads_silently(artifact):
    draw = random.Random(0)  # noqa: S311
    original = load(artifact)
    files = sorted(path for path in artifact.iterdir() if path.name != "card.md")
    sizes = [path.stat().st_size for path in files]
    refused = 0
    for number in range(FLIPS):
        # Every second flip by file, so that small files get their share.
        weights = None if number % 2 else sizes
        path = draw.choices(files, weights)[0]
        bit = draw.randrange(8 * path.stat().st_size)
        flip(path, bit)
        try:
            loaded = load(artifact)
        except ArtifactError:
            refused += 1
        else:
            # 1e-05 and 1E-05 differ by one bit and are the same number.
            assert path.name == "manifest.json", (path.name, bit)
            assert_same_model(loaded, original)
        flip(path, bit)
    assert refused >= FLIPS - 3
    load(artifact)


def test_every_bit_of_the_first_tensor_bytes_matters(artifact):
    path = next(artifact.glob("*.safetensors"))
    start = 8 * header_end(path.read_bytes())
    for bit in range(start, start + 64):
        flip(path, bit)
        with pytest.raises(ArtifactError, match="SHA-256"):
            load(artifact)
        flip(path, bit)


@pytest.mark.parametrize("format_name", ["bitmask", "csr", "nm", "vnm", "nmg", "block"])
def test_swapped_files_of_two_artifacts_are_refused(tmp_path, monkeypatch, format_name):
    force_format(monkeypatch, format_name)
    for seed in (0, 1):
        save(nn.Sequential(sparse_linear(format_name, "masked", seed=seed)), tmp_path / str(seed))
    one, two = (next((tmp_path / str(seed)).glob("*.safetensors")) for seed in (0, 1))
    one.write_bytes(two.read_bytes())
    with pytest.raises(ArtifactError, match=r"SHA-256|bytes"):
        load(tmp_path / "0")
