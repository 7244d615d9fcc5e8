# SPDX-License-Identifier: Apache-2.0
"""What no grid can lay out is refused while masks still move, in one sentence."""

from functools import partial

import pytest
import torch

import gossamer
from gossamer.errors import InputError
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement.placement import check_model
from gossamer.training.optim import LAMB, AdamW
from gossamer.zoo import GPT, MLP
from gossamer.zoo.switch import SwitchGPT


def gpt():
    """Three heads, two blocks, masked as in the first steps of a run."""
    model = GPT(16, width=12, num_heads=3, num_layers=2, context=8)
    gossamer.sparsify(model, sparsity=0.5)
    return model


def check(model, make=torch.optim.AdamW, *, schedule="1f1b", precision="fp32", **mesh):
    optimizer = make(model.parameters(), lr=0.1)
    check_model(
        MeshSizes(**mesh),
        model,
        optimizer,
        precision=precision,
        schedule=schedule,
        microbatches=5 if schedule == "interleaved" else 4,
    )


@pytest.mark.parametrize(
    "mesh", [{"data": 4}, {"pipeline": 2}, {"tensor": 3}, {"data": 2, "pipeline": 2, "shard": 2}]
)
def test_what_works_is_not_refused(mesh):
    check(gpt(), **mesh)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pipeline": 3}, "3 stages need at least as many layers, but GPT has 2"),
        ({"pipeline": 2, "schedule": "zero-bubble-v"}, "4 stages need at least as many layers"),
        ({"pipeline": 2, "schedule": "interleaved"}, "or a multiple of 2; got 5"),
        ({"pipeline": 2, "precision": "bf16"}, "precision bf16 and a pipeline"),
        ({"pipeline": 2, "precision": "fp16"}, "precision fp16 and a pipeline"),
        ({"shard": 2, "make": partial(AdamW, master="wide")}, "SAMO's dense weights"),
        ({"tensor": 2}, "has 3 units, which 2 ranks cannot share"),
        ({"shard": 2, "make": LAMB}, "LAMB needs norms of whole weights"),
    ],
)
def test_what_does_not_is_named(settings, message):
    with pytest.raises(InputError, match=message):
        check(gpt(), **settings)


def test_a_model_that_is_no_chain_of_layers_is_named():
    model = MLP((8, 8, 4))
    with pytest.raises(InputError, match="MLP is not known to be a chain"):
        check(model, pipeline=2)
    with pytest.raises(InputError, match="no transformer block of a known family"):
        check(model, tensor=2)
    check(model, data=2, shard=2)


def test_experts_go_with_data_and_expert_ranks():
    def switch(balance):
        return SwitchGPT(16, width=12, num_heads=2, num_layers=2, context=8, balance=balance)

    for balance in ("loss", "none", "bias"):
        check(switch(balance), data=4)
        check(switch(balance), data=2, expert=4)
    for axis in ("pipeline", "shard", "tensor"):
        with pytest.raises(
            InputError, match=r"experts goes with data and expert only.*Use data: 4"
        ):
            check(switch("loss"), data=2, **{axis: 2})


def test_parameters_that_are_not_the_models_are_named():
    model, other = gpt(), torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([*model.parameters(), other], lr=0.1)
    with pytest.raises(InputError, match="holds 1 parameters that the model has not"):
        check_model(
            MeshSizes(data=2), model, optimizer, precision="fp32", schedule="1f1b", microbatches=1
        )
