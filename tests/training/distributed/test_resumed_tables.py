# SPDX-License-Identifier: Apache-2.0
"""A run with tables goes on to the same bits, and on any number of ranks."""

import shutil
from pathlib import Path

import pytest
import torch
from grid_ranks import run_on_ranks
from test_table_exchange import make_loop

from gossamer.training.checkpoint import CheckpointStore, CheckpointWriter
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import (
    Timeouts,
    joined,
    shared_checkpoint,
    world_of_environment,
)
from gossamer.training.distributed.tables import TableSettings
from gossamer.training.loop import Surroundings

PATIENT = Timeouts(start=120, step=120, heartbeat=2)
STEPS = 12
ROUNDED = MeshSettings(tables=TableSettings("int8", "stochastic", seed=3), seed=3)
BY_ROWS = MeshSettings(shard_tables="row")
BY_TABLES = MeshSettings(shard_tables="table")


def train(settings, folder, resume):
    """All steps, or those after the first half, from a checkpoint in `folder`."""
    world = world_of_environment()
    with joined(MeshSizes(data=world), PATIENT) as session:
        store = CheckpointStore(Path(folder), keep=10)
        held = store.newest(print) if resume and session.is_lead else None
        checkpoint = shared_checkpoint(session, held) if resume else None
        around = Surroundings(writer=CheckpointWriter(store))
        mesh = ProcessMesh(session, settings)
        loop = make_loop(mesh, steps=STEPS, kind=torch.optim.Adagrad, around=around)
        if checkpoint is not None:
            loop.restore(checkpoint)
            assert loop.step == STEPS // 2
        loop.train()


def end_of(folder):
    """Weights and the optimizer's sums after the last step; then that checkpoint is gone."""
    store = CheckpointStore(folder, keep=10)
    assert store.steps() == [STEPS // 2, STEPS]
    last = store.newest(print)
    shutil.rmtree(last.path)
    sums = [entry["sum"] for entry in last.state["optimizer"]["state"].values()]
    shapes = [list(last.state["model"][f"tables.{i}.weight"].shape) for i in range(3)]
    assert shapes == [[60, 4], [7, 5], [200, 4]]
    return [*last.state["model"].values(), *sums]


@pytest.mark.timeout(600)
def test_a_run_goes_on_to_the_same_bits(tmp_path):
    """INT8 with stochastic rounding on 4 ranks: draws follow from the step."""
    run_on_ranks(train, [(4, ROUNDED, str(tmp_path), False)], 4)
    wanted = end_of(tmp_path)
    run_on_ranks(train, [(4, ROUNDED, str(tmp_path), True)], 4)
    for one, other in zip(end_of(tmp_path), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.timeout(600)
def test_a_run_goes_on_with_tables_elsewhere(tmp_path):
    """Rows on 4 ranks, then tables on 2, then whole tables on both: one result."""
    run_on_ranks(train, [(4, BY_ROWS, str(tmp_path), False)], 4)
    wanted = end_of(tmp_path)
    for world, settings in ((2, BY_TABLES), (2, MeshSettings())):
        run_on_ranks(train, [(world, settings, str(tmp_path), True)], world)
        for one, other in zip(end_of(tmp_path), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
