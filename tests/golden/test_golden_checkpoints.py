# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that an earlier version wrote: runs go on from them and end in the same bytes."""

import json
from pathlib import Path

import pytest
import torch
from training_runs import KEPT_STEP, LAST_STEP, RUNS, digests_of, machine, start

from gossamer.training.checkpoint import CheckpointStore, read_checkpoint

FILES = Path(__file__).parent / "checkpoints"
NAMES = sorted(RUNS)


@pytest.fixture(autouse=True)
def one_thread():
    """Sums are added up in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def kept(name):
    return read_checkpoint(FILES / name / f"step_{KEPT_STEP:08d}")


def test_every_run_has_its_files():
    assert sorted(path.name for path in FILES.iterdir() if path.is_dir()) == NAMES


def test_masks_move_in_some_and_layers_are_compact_in_others():
    forms = {name: {f["form"] for f in kept(name).state["forms"].values()} for name in NAMES}
    assert forms == {
        "compact_jit_sgd": {"compact"},
        "compact_split_8bit": {"compact"},
        "masked_8bit": {"masked"},
        "masked_lamb": {"masked"},
        "masked_rigl": {"masked"},
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_run_saves_the_same_state(name, tmp_path):
    loop = start(name, tmp_path)
    loop.restore(kept(name))
    loop._last_saved = -1
    loop.save()
    saved = CheckpointStore(tmp_path).newest(pytest.fail)
    assert digests_of(saved) == digests_of(kept(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_ends_in_the_same_bytes(name, tmp_path):
    record = json.loads((FILES / f"{name}.json").read_text())
    if record["machine"] != machine():
        pytest.skip(f"products may differ in their last bits from those of {record['machine']}")
    loop = start(name, tmp_path)
    loop.restore(kept(name))
    loop.train()
    end = digests_of(read_checkpoint(tmp_path / f"step_{LAST_STEP:08d}"))
    assert end == record["end"]
