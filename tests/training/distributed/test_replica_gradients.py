# SPDX-License-Identifier: Apache-2.0
"""Sums over replicas: the same bits in the first step after a start as in any later one."""

import copy
import warnings

import pytest
import torch
from grid_ranks import run_on_ranks
from torch import nn

from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement.gradients import replicated
from gossamer.training.distributed.processes import Timeouts, joined

PATIENT = Timeouts(start=120, step=120, heartbeat=2)


def model() -> nn.Module:
    """2.2 MB, which is more than one bucket of DDP."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)))


def gradients(replica: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    replica.zero_grad()
    replica(inputs).square().mean().backward()
    return [param.grad.clone() for param in replica.parameters()]


def compare_steps(wire: str) -> None:
    with joined(MeshSizes(data=4), PATIENT) as session:
        inputs = torch.randn(8, 300, generator=torch.Generator().manual_seed(session.rank))
        replica = replicated(model(), session.group("data"), wire)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first, *later = [gradients(replica, inputs) for _ in range(3)]
        for found in later:
            for one, other in zip(first, found, strict=True):
                assert torch.equal(one, other)
        alone = copy.deepcopy(replica.module)
        own = gradients(alone, inputs)
        assert not torch.equal(own[0], first[0])


@pytest.mark.timeout(600)
def test_every_step_adds_in_the_same_order():
    run_on_ranks(compare_steps, [(4, "full"), (4, "bf16")], 4)
