# SPDX-License-Identifier: Apache-2.0
"""A run that goes on with another grid: checkpoints are those of the whole model."""

from pathlib import Path

import pytest
import torch
from grid_ranks import run_on_ranks

from gossamer.nn import CompactWeight
from gossamer.recipes.loader import parse_recipe
from gossamer.recipes.train_request import TrainRequest
from gossamer.recipes.train_stage import run_training
from gossamer.train.checkpoint import CheckpointStore
from gossamer.train.distributed.grid import Grid, GridSettings
from gossamer.train.distributed.mesh_sizes import MeshSizes
from gossamer.train.distributed.session import Timeouts, joined
from gossamer.train.metrics import read_metrics
from gossamer.train.run_folder import RunFolder

# Masks are final after 4 steps; the rate does not depend on the length of the run.
RECIPE = """\
gossamer: 1
stages:
  - train:
      task: text
      model: {{name: gpt, width: 16, heads: 4, layers: 2, context: 16}}
      steps: {steps}
      batch: 8
      optimizer: {{lr: 0.01}}
      rate: {{shape: constant, warmup: 0}}
      schedule: {{kind: gradual, sparsity: 0.7, begin: 1, end: 4, every: 1}}
      compaction: jit
      log_every: 1
"""
LEGS = [((2, 2, 1, 1), 6), ((4, 1, 1, 1), 8), ((1, 1, 2, 2), 10), ((1, 1, 1, 1), 12)]


def train_leg(mesh: tuple[int, ...], steps: int, folder: str) -> None:
    recipe = parse_recipe(RECIPE.format(steps=steps).encode(), "recipe.yaml")
    resume = steps > LEGS[0][1]
    request = TrainRequest(recipe=recipe, data="zoo:text", resume=resume, allow_change=resume)
    kept = RunFolder(Path(folder) / "out")
    kept.checkpoints.mkdir(parents=True, exist_ok=True)
    sizes = MeshSizes(*mesh)
    if sizes.num_ranks == 1:
        run_training(request, kept, say=print)
        return
    with joined(sizes, Timeouts(240, 240, 2)) as session:
        grid = Grid(session, GridSettings(microbatches=2 if sizes.pipeline > 1 else 1))
        trained = run_training(request, kept, say=lambda _: None, grid=grid)
        if session.is_lead:
            layers = [m for m in trained.loop.model.modules() if isinstance(m, CompactWeight)]
            assert len(layers) == 8
            assert all(layer.nnz == int(layer.mask().sum()) for layer in layers)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_goes_on_with_any_other_grid_and_the_same_masks(tmp_path):
    cases = [(MeshSizes(*mesh).num_ranks, mesh, steps, str(tmp_path)) for mesh, steps in LEGS]
    run_on_ranks(train_leg, cases, 4)
    store = CheckpointStore(RunFolder(tmp_path / "out").checkpoints)
    last, before = store.newest(print), store.steps()
    assert before == [10, 12]
    masks = {n: t for n, t in last.state["model"].items() if n.endswith("mask_bits")}
    assert len(masks) == 8
    alone = tmp_path / "alone"
    train_leg_alone(alone)
    expected = CheckpointStore(RunFolder(alone / "out").checkpoints).newest(print)
    for name, mask in masks.items():
        assert torch.equal(mask, expected.state["model"][name]), name
    for name, tensor in expected.state["model"].items():
        torch.testing.assert_close(last.state["model"][name], tensor, rtol=0, atol=2e-4)
    losses = [losses_of(folder) for folder in (tmp_path, alone)]
    assert [step for step, _ in losses[0]] == list(range(1, 13))
    for (_, found), (_, wanted) in zip(*losses, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)


def train_leg_alone(folder: Path) -> None:
    recipe = parse_recipe(RECIPE.format(steps=LEGS[-1][1]).encode(), "recipe.yaml")
    kept = RunFolder(folder / "out")
    kept.checkpoints.mkdir(parents=True)
    run_training(TrainRequest(recipe=recipe, data="zoo:text"), kept, say=print)


def losses_of(folder: Path) -> list[tuple[int, float]]:
    records = read_metrics(RunFolder(folder / "out").metrics)
    return [(r["step"], r["loss"]) for r in records if r["kind"] == "step"]
