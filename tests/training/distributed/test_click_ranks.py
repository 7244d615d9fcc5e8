# SPDX-License-Identifier: Apache-2.0
"""`gossamer train` of a click model on several processes: the same model, the same bytes."""

import json
from pathlib import Path

import pytest
import torch
from grid_launch import launch
from safetensors.torch import load_file

from gossamer.zoo.problems import click_problem, write_criteo

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: clicks
      model: {{name: dlrm, width: 4, bottom: [8], top: [8]}}
      data: {{clicks: {{format: criteo, ids: vocabulary, floor: 2, window: 100}}}}
      steps: {steps}
      batch: 32
      {tables}
      optimizer: {{lr: 0.01, tables: {{name: {name}, lr: 0.1}}}}
      checkpoint: {{every: 5, keep: 10}}
      evaluation: {{every: 10{best}}}
      log_every: 1
      mesh: {{data: {data}, tables: {{{mesh}}}, heartbeat: 0.5, timeout: 60, start_timeout: 240}}
"""
FEW_BITS = "quantize_tables: {bits: 4, period: 7}"
ROUNDED = "wire: int8, rounding: stochastic"
# Rows of float32 that ranks share.
SHARED = {"tables": "", "best": "", "mesh": "shard: row"}


def write_log(folder: Path) -> None:
    folder.mkdir()
    problem = click_problem(torch.Generator().manual_seed(0), num_rows=600, rows=(20,) * 26)
    write_criteo(problem, folder / "log.tsv")


def start(folder: Path, ranks: int, *extra: str, steps: int = 20, **changed):
    settings = {"tables": FEW_BITS, "name": "adagrad", "best": ", keep: best", **changed}
    settings = {"mesh": "route: auto", **settings}
    (folder / "recipe.yaml").write_text(RECIPE.format(data=ranks, steps=steps, **settings))
    return launch(folder, ranks, *extra, data=str(folder / "log.tsv"))


def finished(folder: Path, ranks: int, *extra: str, seconds: float = 240, **changed):
    run = start(folder, ranks, *extra, **changed)
    assert run.ended(seconds) == [0] * ranks, run.errors()
    return run


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted((folder / "out").glob("*.safetensors")):
        found |= load_file(path)
    assert found
    return found


def quality(folder: Path) -> dict[str, float]:
    return json.loads((folder / "out" / "report.json").read_text())["quality"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"tables": "", "name": "sgd", "best": ""},
        SHARED,
    ],
    ids=["int4", "fp32", "shared-rows"],
)
def test_two_ranks_train_what_one_trains(tmp_path, changed):
    """Means over halves of a batch are the mean over the batch, scales included."""
    write_log(one := tmp_path / "one")
    write_log(two := tmp_path / "two")
    finished(one, 1, **{**changed, "mesh": "route: auto"})
    run = finished(two, 2, **changed)
    for name, tensor in weights(one).items():
        other = weights(two)[name]
        assert other.dtype == tensor.dtype
        torch.testing.assert_close(other, tensor, rtol=1e-4, atol=1e-5)
    assert quality(two).keys() == quality(one).keys() >= {"auc", "test_auc"}
    for name, value in quality(one).items():
        assert quality(two)[name] == pytest.approx(value, abs=1e-3)
    assert ('"tables"' in run.metrics()) == ("shard" not in changed.get("mesh", ""))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("changed", [{"mesh": ROUNDED}, SHARED], ids=["int8", "shared-rows"])
def test_a_killed_run_gives_the_same_bytes(tmp_path, changed):
    write_log(whole := tmp_path / "whole")
    finished(whole, 2, **changed)
    write_log(killed := tmp_path / "killed")
    run = start(killed, 2, **changed)
    run.wait_for('"step": 12')
    run.clean_up()
    finished(killed, 2, "--resume", **changed)
    names = sorted(path.name for path in (whole / "out").glob("*.safetensors"))
    assert names
    for name in names:
        assert (whole / "out" / name).read_bytes() == (killed / "out" / name).read_bytes()
    assert quality(whole) == quality(killed)


@pytest.mark.timeout(600)
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path):
    """Killed on two, then on one: what one process alone would have trained."""
    write_log(whole := tmp_path / "whole")
    finished(whole, 1)
    write_log(moved := tmp_path / "moved")
    run = start(moved, 2)
    run.wait_for('"step": 12')
    run.clean_up()
    assert any((moved / "out.run" / "checkpoints").iterdir())
    finished(moved, 1, "--resume")
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(moved)[name], tensor, rtol=1e-4, atol=1e-5)
