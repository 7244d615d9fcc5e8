# SPDX-License-Identifier: Apache-2.0
"""RigL on grids: weights that joined late, and gradients summed over steps, survive cut and kill.

Masks move for 8 of 14 steps; then the model is compact and cut. Runs go on from every checkpoint.
"""

from dataclasses import replace
from pathlib import Path

import grid_tiny as tiny
import pytest
import torch
from grid_ranks import run_on_ranks

import gossamer
from gossamer.training.checkpoint import CheckpointStore, CheckpointWriter, read_checkpoint
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined, shared_checkpoint
from gossamer.training.loop import Loop, Surroundings

TIMEOUTS = Timeouts(start=60, step=60, heartbeat=1)
STEPS, SETTLED = 14, 8
# Exchanges after steps 3 and 6; the gradient of both is the sum of two steps.
SCHEDULE = {"kind": "rigl", "sparsity": 0.6, "every": 3, "end": SETTLED, "gradient_steps": 2,
            "budget": "uniform", "ignore": ["head"]}  # fmt: skip


def make_loop(processes, folder: Path | None) -> Loop:
    model = tiny.build("dense")
    loop = tiny.make_loop(model, processes, steps=STEPS)
    control = gossamer.attach(model, SCHEDULE, loop.optimizer, total_steps=STEPS)
    writer = None
    if folder is not None:
        writer = CheckpointWriter(CheckpointStore(folder, keep=STEPS), asynchronous=False)
    settings = replace(loop.settings, checkpoint_every=1 if folder is not None else None)
    return Loop(
        model,
        loop.optimizer,
        tiny.loss,
        tiny.batches(),
        settings,
        control=control,
        around=Surroundings(writer=writer),
        processes=processes,
    )


def state_of(loop: Loop) -> dict[str, torch.Tensor]:
    """Weights and moments at the end."""
    found = dict(loop.model.state_dict())
    for index, entry in loop.optimizer.state_dict()["state"].items():
        found |= {f"{index}/{key}": value for key, value in entry.items()}
    return found


def train_and_resume(mesh: tuple[int, ...], microbatches: int, folder: str, resumed: tuple) -> None:
    with joined(MeshSizes(*mesh), TIMEOUTS) as session:

        def grid() -> ProcessMesh:
            return ProcessMesh(session, MeshSettings(microbatches=microbatches))

        whole = make_loop(grid(), Path(folder))
        whole.train()
        for step in resumed:
            read = read_checkpoint(Path(folder) / f"step_{step:08}") if session.is_lead else None
            checkpoint = shared_checkpoint(session, read)
            again = make_loop(grid(), None)
            again.restore(checkpoint)
            again.train()
            if session.is_lead:
                found, expected = state_of(again), state_of(whole)
                assert found.keys() == expected.keys()
                assert [n for n in found if not torch.equal(found[n], expected[n])] == [], step
    if session.is_lead:
        # Without a process group: a schedule would look for replicas in it.
        alone = make_loop(None, None)
        alone.train()
        expected = state_of(alone)
        for name, tensor in state_of(whole).items():
            assert float((tensor - expected[name]).abs().max()) < 1e-12, name


@pytest.mark.timeout(600)
def test_rigl_equals_one_process_and_goes_on_from_any_checkpoint(tmp_path):
    cases = [
        ((2, 2, 1, 1), 2, (5, 10)),
        ((1, 1, 2, 2), 1, (12,)),
    ]
    made = [
        (MeshSizes(*mesh).num_ranks, mesh, count, str(tmp_path / str(number)), steps)
        for number, (mesh, count, steps) in enumerate(cases)
    ]
    run_on_ranks(train_and_resume, made, 4)
