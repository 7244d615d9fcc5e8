# SPDX-License-Identifier: Apache-2.0
"""A model that grows on a grid takes the steps of a single process: float64, 1e-12."""

import grid_tiny as tiny
import pytest
from grid_ranks import run_on_ranks

from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined
from gossamer.training.growth import Growth, GrowthStep

TIMEOUTS = Timeouts(start=60, step=60, heartbeat=1)
GROWTHS = {
    "deeper": (GrowthStep(Growth(depth=2), at=2),),
    "wider": (GrowthStep(Growth(width=2), at=2, rewarm=2),),
    "sparse": (GrowthStep(Growth(width=2, opened=0.3), at=2),),
    "twice": (GrowthStep(Growth(depth=2), at=1), GrowthStep(Growth(width=2), at=3)),
}


def train_on(mesh, microbatches, kind, name) -> None:
    sizes, grow = MeshSizes(*mesh), GROWTHS[name]
    with joined(sizes, TIMEOUTS) as session:
        settings = MeshSettings(microbatches=microbatches)
        loop = tiny.make_loop(tiny.build(kind), ProcessMesh(session, settings), grow=grow)
        loop.train()
        if session.is_lead:
            expected = tiny.alone(kind, grow=grow)
            assert tiny.largest_difference(loop.model, expected.model) < 1e-12
            assert loop._losses == pytest.approx(expected._losses, abs=1e-12)


def run(cases) -> None:
    found = [(MeshSizes(*mesh).num_ranks, mesh, *how) for mesh, *how in cases]
    run_on_ranks(train_on, found, max(case[0] for case in found))


@pytest.mark.timeout(600)
def test_a_grid_grows_like_one_process():
    run([((2, 2, 1, 1), 2, "dense", "wider"), ((1, 2, 2, 1), 2, "compact", "deeper")])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_grid_grows_like_one_process():
    meshes = [((2, 1, 1, 1), 1), ((2, 2, 1, 1), 2), ((2, 1, 1, 2), 1), ((1, 2, 2, 1), 2)]
    run(
        [
            (mesh, micro, kind, name)
            for mesh, micro in meshes
            for kind in ("dense", "compact", "tied")
            for name in GROWTHS
            if (kind, name) != ("compact", "sparse")
        ]
    )
