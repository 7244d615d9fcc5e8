# SPDX-License-Identifier: Apache-2.0
"""Files that an earlier version wrote: they load to the same bits and are written the same."""

import json
from pathlib import Path

import pytest
from catalogue import MODELS
from states import state_of

import gossamer
from gossamer.nn import CompactWeight, MaskedWeight, replace_module

FILES = Path(__file__).parent / "files"
# Models of zoo and torch modules are described by their file; the others are containers of layers.
NAMES = sorted(MODELS)


def files_of(folder):
    """What machines read; card.md is for people."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "card.md"}


@pytest.fixture(autouse=True)
def same_producer(monkeypatch):
    """The version that wrote the files stands in their manifests."""
    manifest = json.loads((FILES / "fp32" / "manifest.json").read_text())
    monkeypatch.setattr("gossamer.io.artifact.writer.producer", lambda: manifest["producer"])


def test_every_entry_has_its_files():
    assert sorted(path.name for path in FILES.iterdir() if path.is_dir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_to_the_same_bits(name):
    model = gossamer.load(FILES / name)
    assert state_of(model) == json.loads((FILES / f"{name}.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_it_is_written_again_byte_by_byte(name, tmp_path):
    gossamer.save(gossamer.load(FILES / name), tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(FILES / name)


@pytest.mark.parametrize("name", NAMES)
def test_layers_made_anew_from_dense_weight_and_mask_are_written_the_same(name, tmp_path):
    model = gossamer.load(FILES / name)
    tied = [module for module in model.modules() if isinstance(module, CompactWeight)]
    if len({id(module.values) for module in tied}) < len(tied):
        pytest.skip("from_dense makes layers that are not tied")
    for module in list(model.modules()):
        if isinstance(module, MaskedWeight | CompactWeight):
            made = type(module).from_dense(module.to_dense(), module.mask(), module.pattern)
            replace_module(model, module, made)
    gossamer.save(model, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(FILES / name)
