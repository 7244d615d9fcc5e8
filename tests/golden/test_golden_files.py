# SPDX-License-Identifier: Apache-2.0
"""Files that an earlier version wrote: they load to the same bits and are written the same."""

import json
import math
from pathlib import Path

import pytest
import torch
from catalogue import MODELS
from safetensors.torch import load_file
from states import state_of

import gossamer
from gossamer.nn.layers import CompactWeight, MaskedWeight
from gossamer.nn.surgery import replace_module

FILES = Path(__file__).parent / "files"
# What the same models were written as once layers that keep everything stored no mask.
WITHOUT_FULL_MASKS = Path(__file__).parent / "files_without_full_masks"
# And since groups of N:M, V:N:M and nmg store their choices in the fewest whole bits.
FEWEST_BITS = Path(__file__).parent / "files_in_fewest_bits"
LATER = (WITHOUT_FULL_MASKS, FEWEST_BITS)
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


def written_now(name):
    newest = next(
        root for root in (FEWEST_BITS, WITHOUT_FULL_MASKS, FILES) if (root / name).is_dir()
    )
    return files_of(newest / name)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_written_again_byte_by_byte(name, tmp_path):
    gossamer.save(gossamer.load(FILES / name), tmp_path / "again")
    assert files_of(tmp_path / "again") == written_now(name)


@pytest.mark.parametrize("name", sorted(path.name for path in WITHOUT_FULL_MASKS.iterdir()))
def test_only_the_bits_of_layers_that_keep_everything_are_gone(name):
    roots = (FILES, WITHOUT_FULL_MASKS)
    old, new = (json.loads((root / name / "manifest.json").read_text()) for root in roots)
    gone = set()
    for tensor, entry in old["tensors"].items():
        if entry != new["tensors"][tensor]:
            assert entry["mask"]["nnz"] == math.prod(entry["shape"])
            entry["arrays"].remove("bitmask")
            assert entry == new["tensors"][tensor]
            gone.add(f"{tensor}::bitmask")
    for file in (FILES / name).glob("*.safetensors"):
        before, after = load_file(file), load_file(WITHOUT_FULL_MASKS / name / file.name)
        assert set(before) - set(after) == gone & set(before)
        assert all(torch.equal(before[key], after[key]) for key in after)
    same = set(old) - {"tensors", "files", "digest", "sha256"}
    assert {key: old[key] for key in same} == {key: new[key] for key in same}


@pytest.mark.parametrize("name", sorted(path.name for path in FEWEST_BITS.iterdir()))
def test_only_positions_of_grouped_patterns_are_stored_anew_and_in_fewer_bytes(name):
    before = WITHOUT_FULL_MASKS if (WITHOUT_FULL_MASKS / name).is_dir() else FILES
    roots = (before, FEWEST_BITS)
    old, new = (json.loads((root / name / "manifest.json").read_text()) for root in roots)
    arrays = [{}, {}]
    for found, root in zip(arrays, roots, strict=True):
        for file in (root / name).glob("*.safetensors"):
            found |= load_file(file)
    was, now = arrays
    for tensor, entry in old["tensors"].items():
        after = new["tensors"][tensor]
        pair = entry.get("format"), after.get("format")
        keys = [
            {key for key in found if key.split("::")[0] == tensor and key[-8:] != "::values"}
            for found in arrays
        ]
        if entry == after:
            assert keys[0] == keys[1]
            assert all(torch.equal(was[key], now[key]) for key in keys[0])
            continue
        assert pair in {("nm", "nm"), ("vnm", "vnm"), ("bitmask", "nmg"), ("bitmask", "nm")}
        changed = {key for key in entry if entry[key] != after[key]}
        assert changed <= {"format", "arrays", "codes"}
        if "codes" in changed:  # nmg has its values in another order
            assert pair == ("bitmask", "nmg")
            assert {**entry["codes"], "shape": after["codes"]["shape"]} == after["codes"]
        assert sum(now[key].nbytes for key in keys[1]) < sum(was[key].nbytes for key in keys[0])


@pytest.mark.parametrize(
    ("root", "name"), [(root, path.name) for root in LATER for path in sorted(root.iterdir())]
)
def test_what_was_written_later_loads_to_the_same_bits(root, name):
    state = json.loads((FILES / f"{name}.json").read_text())
    assert state_of(gossamer.load(root / name)) == state


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
    assert files_of(tmp_path / "again") == written_now(name)
