# SPDX-License-Identifier: Apache-2.0
"""Every grid takes the steps of a single process: float64, five clipped AdamW steps, 1e-12."""

import grid_tiny as tiny
import pytest
from grid_ranks import run_on_ranks

from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined

TIMEOUTS = Timeouts(start=60, step=60, heartbeat=1)
# Grid, microbatches, schedule.
GRIDS = [
    ((2, 1, 1, 1), 1, "1f1b"),
    ((2, 1, 2, 1), 1, "1f1b"),
    ((1, 1, 1, 2), 1, "1f1b"),
    ((2, 1, 1, 2), 1, "1f1b"),
    ((1, 1, 2, 2), 1, "1f1b"),
    ((1, 2, 1, 1), 4, "1f1b"),
    ((1, 2, 1, 1), 1, "gpipe"),
    ((1, 2, 1, 1), 4, "interleaved"),
    ((1, 2, 1, 1), 4, "zero-bubble-v"),
    ((2, 2, 1, 1), 2, "message-driven"),
    ((2, 2, 1, 1), 2, "zero-bubble"),
    ((1, 4, 1, 1), 8, "1f1b"),
    ((1, 4, 1, 1), 4, "message-driven"),
    ((1, 2, 1, 2), 2, "gpipe"),
    ((1, 2, 2, 1), 2, "1f1b"),
]


def train_on(mesh, microbatches, schedule, kind, accumulate) -> None:
    sizes = MeshSizes(*mesh)
    with joined(sizes, TIMEOUTS) as session:
        settings = MeshSettings(microbatches=microbatches, schedule=schedule)
        loop = tiny.make_loop(
            tiny.build(kind), ProcessMesh(session, settings), accumulate=accumulate
        )
        loop.train()
        if session.is_lead:
            expected = tiny.alone(kind, accumulate=accumulate)
            assert tiny.largest_difference(loop.model, expected.model) < 1e-12
            assert loop._losses == pytest.approx(expected._losses, abs=1e-12)
            moments = loop.optimizer.state_dict()["state"]
            for index, entry in expected.optimizer.state_dict()["state"].items():
                for key, value in entry.items():
                    assert float((moments[index][key] - value).abs().max()) < 1e-12


def run(grids, kinds) -> None:
    cases = [
        (MeshSizes(*mesh).num_ranks, mesh, *how, kind, 1 + (kind == "tied"))
        for mesh, *how in grids
        for kind in kinds
    ]
    run_on_ranks(train_on, cases, max(case[0] for case in cases))


@pytest.mark.timeout(600)
def test_a_grid_equals_one_process():
    run([GRIDS[1], GRIDS[3], GRIDS[9]], ["compact"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_grid_and_schedule_equals_one_process():
    run(GRIDS, ["compact", "dense", "tied"])
