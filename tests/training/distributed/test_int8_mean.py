# SPDX-License-Identifier: Apache-2.0
"""Dense gradients as int8: what rounding takes away comes back, on all ranks the same."""

import pytest
import torch
from grid_ranks import run_on_ranks
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.processes import Timeouts, joined, world_of_environment
from gossamer.training.distributed.processes.messages import gather_json
from gossamer.training.distributed.tables import Int8Mean

PATIENT = Timeouts(start=120, step=120, heartbeat=2)
SHAPES = {"a": (30, 17), "b": (1,), "c": (0,), "d": (700,)}


def compare():
    world = world_of_environment()
    with joined(MeshSizes(data=world), PATIENT) as session:
        params = {name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
        mean = Int8Mean(params)
        handed_out = {name: torch.zeros(shape).double() for name, shape in SHAPES.items()}
        wanted = {name: torch.zeros(shape).double() for name, shape in SHAPES.items()}
        for step in range(30):
            for index, (name, param) in enumerate(params.items()):
                grads = [
                    10.0**-index
                    * torch.randn(
                        param.shape,
                        generator=torch.Generator().manual_seed(1000 * step + 10 * r + index),
                    )
                    for r in range(world)
                ]
                param.grad = grads[session.rank]
                wanted[name] += sum(grad.double() for grad in grads) / world
            mean.reduce()
            for name, param in params.items():
                handed_out[name] += param.grad.double()
        alike = {name: param.grad.tolist() for name, param in params.items()}
        assert len({str(one) for one in gather_json(alike)}) == 1
        # What waits, everywhere, is what was not handed out.
        waits = torch.tensor(gather_json(mean.waiting_BN.tolist())).double().mean(0).view(-1)
        at_owners = torch.tensor(gather_json(mean.waiting_here_BN.tolist())).double().view(-1)
        missing = torch.cat([(wanted[n] - handed_out[n]).view(-1) for n in SHAPES])
        held = (waits + at_owners)[: len(missing)]
        torch.testing.assert_close(held, missing, rtol=0, atol=1e-5)
        assert float(missing.abs().max()) > 1e-4
        refuse(mean, params, session.rank)


def refuse(mean, params, rank):
    state = mean.state_dict()
    params["a"].grad = torch.full(SHAPES["a"], float("nan") if rank else 1.0)
    mean.reduce()
    assert bool(params["a"].grad.isnan().all())
    assert bool(params["d"].grad.isfinite().all())
    assert torch.equal(mean.waiting_BN, state["waiting"])
    mean.load_state_dict(state)
    with pytest.raises(ArtifactError, match="waiting_here: expected float32"):
        mean.load_state_dict({**state, "waiting_here": torch.zeros(3)})
    with pytest.raises(InputError, match=r"float32 gradients, got torch\.float64"):
        Int8Mean({"x": nn.Parameter(torch.zeros(2).double())})


@pytest.mark.timeout(600)
def test_nothing_is_lost():
    run_on_ranks(compare, [(2,), (3,), (4,)], 4)
