# SPDX-License-Identifier: Apache-2.0
"""Damaged files of stopped runs: refused with a cure, or left out where a cut is normal."""

import json

import pytest
import torch
from safetensors.torch import save_file

from gossamer.errors import ArtifactError, InputError
from gossamer.pruning.calibration.journal import DiskJournal
from gossamer.pruning.solvers import LayerSolution
from gossamer.training.run_files import read_metrics

KEY = {"model": "m"}
MASK = torch.arange(60).view(6, 10) % 3 == 0


@pytest.fixture
def journal(tmp_path):
    made = DiskJournal(tmp_path / "j", KEY)
    made.note("layer", LayerSolution(torch.ones(6, 10) * MASK, MASK, ("a note",)))
    return made


def layer_file(journal):
    return next(journal.folder.glob("*.safetensors"))


def test_a_solution_comes_back(journal):
    found = DiskJournal(journal.folder, KEY).recall("layer")
    assert torch.equal(found.mask_RK, MASK)
    assert torch.equal(found.weight_RK, torch.ones(6, 10) * MASK)
    assert found.notes == ("a note",)


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"[1]", b"", b"\xff", b'{"model": "m"'])
def test_a_damaged_key_says_what_to_delete(journal, raw):
    (journal.folder / "journal.json").write_bytes(raw)
    with pytest.raises(ArtifactError, match="Delete"):
        DiskJournal(journal.folder, KEY)


def test_the_key_of_another_run_is_told_in_few_words(journal):
    (journal.folder / "journal.json").write_text(json.dumps({"model": "x" * 100_000, "y": [1]}))
    with pytest.raises(InputError, match="another run") as caught:
        DiskJournal(journal.folder, KEY)
    assert len(str(caught.value)) < 3000


GOOD = {
    "values": torch.ones(int(MASK.sum())),
    "mask_bits": torch.zeros(6, 2, dtype=torch.uint8),
    "shape": torch.tensor([6, 10]),
    "notes": torch.zeros(0, dtype=torch.uint8),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": torch.tensor([6, 10, 1])},
        {"shape": torch.tensor([6, 2**40])},
        {"shape": torch.tensor([-6, 10])},
        {"shape": torch.tensor([6.0, 10.0])},
        {"mask_bits": torch.zeros(12, dtype=torch.uint8)},
        {"mask_bits": torch.zeros(6, 2)},
        {"values": torch.ones(2, 2)},
        {"values": torch.ones(3, dtype=torch.int64)},
        {"notes": torch.tensor([255, 255], dtype=torch.uint8)},
        {"notes": torch.zeros(2, 2)},
        {"notes": None},
        {},
    ],
)
def test_damaged_layers_are_refused_with_a_cure(journal, changes):
    tensors = {name: value for name, value in (GOOD | changes).items() if value is not None}
    save_file(tensors, layer_file(journal))
    with pytest.raises(ArtifactError, match="Delete this file to prune layer again"):
        journal.recall("layer")


def test_a_file_that_is_a_link_is_not_followed(journal, tmp_path):
    path = layer_file(journal)
    path.rename(tmp_path / "elsewhere.safetensors")
    path.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ArtifactError, match="outside of the directory"):
        journal.recall("layer")


@pytest.mark.parametrize("tail", [b'{"kind": "st', b"[" * 100_000, b"7\n", b"\xff\n", b"\n", b""])
def test_metrics_end_where_they_cannot_be_read(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "step", "step": 1}\n{"kind": "step", "step": 2}\n' + tail)
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
