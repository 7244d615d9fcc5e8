# SPDX-License-Identifier: Apache-2.0
"""A run that goes on with another grid: checkpoints are those of the whole model."""

import os
import signal
from pathlib import Path

import pytest
import torch
from grid_ranks import run_on_ranks

from gossamer.recipes.loader import parse_recipe
from gossamer.runs.training import TrainRequest
from gossamer.runs.training.stage import run_training
from gossamer.training.checkpoint import CheckpointStore
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined
from gossamer.training.loop.endings import TrainingStopped
from gossamer.training.run_files import RunFolder, read_metrics

TIMEOUTS = Timeouts(240, 240, 2)
# Masks are final after 4 steps.
RECIPE = """\
gossamer: 1
stages:
  - train:
      task: text
      model: {name: gpt, width: 16, heads: 4, layers: 2, context: 16}
      steps: 12
      batch: 8
      optimizer: {lr: 0.01}
      rate: {shape: constant, warmup: 0}
      schedule: {kind: gradual, sparsity: 0.7, begin: 1, end: 4, every: 1}
      compaction: jit
      log_every: 1
"""
# Grid, and the step after which it is asked to stop.
LEGS = [((2, 2, 1, 1), 6), ((4, 1, 1, 1), 8), ((1, 1, 2, 2), 10), ((1, 1, 1, 1), 12)]


def train_leg(mesh: tuple[int, ...], stop: int, folder: str) -> None:
    request = request_of(resume=stop > LEGS[0][1])
    kept = RunFolder(Path(folder) / "out")
    kept.checkpoints.mkdir(parents=True, exist_ok=True)
    sizes = MeshSizes(*mesh)
    if sizes.num_ranks == 1:
        run_training(request, kept, say=print)
        return

    def ask_to_stop(step: int, _: int) -> None:
        # To one rank, in the step before: all of them agree on it in the next.
        if step == stop - 1 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)

    def train() -> None:
        with joined(sizes, TIMEOUTS) as session:
            grid = ProcessMesh(session, MeshSettings(microbatches=2 if sizes.pipeline > 1 else 1))
            run_training(request, kept, say=lambda _: None, grid=grid, progress=ask_to_stop)

    with pytest.raises((TrainingStopped, SystemExit)):
        train()


def request_of(**settings) -> TrainRequest:
    recipe = parse_recipe(RECIPE.encode(), "recipe.yaml")
    return TrainRequest(recipe=recipe, data="zoo:text", **settings)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_goes_on_with_any_other_grid_and_the_same_masks(tmp_path):
    cases = [(MeshSizes(*mesh).num_ranks, mesh, stop, str(tmp_path)) for mesh, stop in LEGS]
    run_on_ranks(train_leg, cases, 4)
    store = CheckpointStore(RunFolder(tmp_path / "out").checkpoints)
    last, before = store.newest(print), store.steps()
    assert before == [10, 12]
    masks = {n: t for n, t in last.state["model"].items() if n.endswith("mask_bits")}
    assert len(masks) == 8
    alone = tmp_path / "alone"
    train_alone(alone)
    expected = CheckpointStore(RunFolder(alone / "out").checkpoints).newest(print)
    for name, mask in masks.items():
        assert torch.equal(mask, expected.state["model"][name]), name
    for name, tensor in expected.state["model"].items():
        torch.testing.assert_close(last.state["model"][name], tensor, rtol=0, atol=2e-4)
    losses = [losses_of(folder) for folder in (tmp_path, alone)]
    assert [step for step, _ in losses[0]] == list(range(1, 13))
    for (_, found), (_, wanted) in zip(*losses, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)


def train_alone(folder: Path) -> None:
    kept = RunFolder(folder / "out")
    kept.checkpoints.mkdir(parents=True)
    run_training(request_of(), kept, say=print)


def losses_of(folder: Path) -> list[tuple[int, float]]:
    records = read_metrics(RunFolder(folder / "out").metrics)
    return [(r["step"], r["loss"]) for r in records if r["kind"] == "step"]
