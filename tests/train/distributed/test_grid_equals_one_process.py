# SPDX-License-Identifier: Apache-2.0
"""Every grid takes the steps of a single process: float64, five clipped AdamW steps, 1e-12."""

import grid_tiny as tiny
import pytest
from grid_ranks import run_on_ranks

from gossamer.train.distributed.grid import Grid, GridSettings
from gossamer.train.distributed.mesh_sizes import MeshSizes
from gossamer.train.distributed.session import Timeouts, joined

TIMEOUTS = Timeouts(start=60, step=60, heartbeat=1)
GRIDS = [
    (2, 1, 1, 1),
    (2, 1, 2, 1),
    (1, 1, 1, 2),
    (2, 1, 1, 2),
    (1, 1, 2, 1),
    (1, 1, 2, 2),
]


def train_on(mesh: tuple[int, ...], kind: str, accumulate: int) -> None:
    sizes = MeshSizes(*mesh)
    with joined(sizes, TIMEOUTS) as session:
        loop = tiny.make_loop(
            tiny.build(kind), Grid(session, GridSettings()), accumulate=accumulate
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


@pytest.mark.timeout(300)
def test_every_grid_equals_one_process():
    cases = [
        (MeshSizes(*mesh).num_ranks, mesh, kind, 1 + (kind == "tied"))
        for mesh in GRIDS
        for kind in ("compact", "dense", "tied")
    ]
    run_on_ranks(train_on, cases, 4)
