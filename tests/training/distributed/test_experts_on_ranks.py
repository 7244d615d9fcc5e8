# SPDX-License-Identifier: Apache-2.0
"""Experts on several ranks take the steps of a single process: float64, 1e-12."""

import warnings

import pytest
import torch
from grid_ranks import run_on_ranks
from torch.nn.functional import cross_entropy

import gossamer.nn as gnn
from gossamer.data import RepeatedBatches
from gossamer.errors import InputError
from gossamer.nn.layer_kinds import kind_name
from gossamer.nn.surgery import replace_module
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import ProcessMesh
from gossamer.training.distributed.placement.placement import check_model
from gossamer.training.distributed.processes import Timeouts, joined
from gossamer.training.experts import follow_experts, with_routing
from gossamer.training.loop import LearningRate, Loop, LoopSettings
from gossamer.zoo.switch import SwitchGPT

TIMEOUTS = Timeouts(start=60, step=60, heartbeat=1)
STEPS, BATCH, CONTEXT, EXPERTS = 4, 8, 8, 4
# Grid; settings of the mixture.
DROPLESS = {"top_k": 2}
TIGHT = {"top_k": 1, "capacity": 0.8}
BIAS = {"top_k": 1, "balance": "bias"}
CASES = [
    ((1, 1, 1, 1, 2), DROPLESS, "dense"),
    ((1, 1, 1, 1, 4), TIGHT, "dense"),
    ((2, 1, 1, 1, 2), BIAS, "compact"),
    ((2, 1, 1, 1, 1), TIGHT, "dense"),
]


def build(settings, form):
    torch.manual_seed(0)
    model = SwitchGPT(
        11, width=16, num_heads=4, num_layers=2, context=CONTEXT, num_experts=EXPERTS, **settings
    ).double()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.1 * torch.randn_like(param))
    if form == "compact":
        for _, layer in list(model.named_modules()):
            if kind_name(layer) == "experts":
                mask = torch.rand(layer.weight.shape) < 0.4
                replace_module(model, layer, gnn.Experts.from_dense(layer, mask))
    return model


def loss(model, ids_BT):
    logits = model(ids_BT[:, :-1])
    return cross_entropy(logits.flatten(0, 1), ids_BT[:, 1:].flatten())


def make_loop(model, processes=None, accumulate=1):
    generator = torch.Generator().manual_seed(7)
    batches = RepeatedBatches(
        [torch.randint(11, (BATCH, CONTEXT + 1), generator=generator) for _ in range(3)]
    )
    # The bias of keys has no gradient but rounding, which a small eps would make steps of.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, eps=1e-6)
    follow_experts(model, optimizer)
    settings = LoopSettings(
        steps=STEPS,
        rate=LearningRate("constant", STEPS, 0),
        clip=0.5,
        accumulate=accumulate,
        compaction="jit",
        log_every=1,
    )
    return Loop(model, optimizer, with_routing(loss), batches, settings, processes=processes)


def train_on(mesh, settings, form, accumulate=1):
    sizes = MeshSizes(*mesh)
    # Random routers send most tokens to few experts, so that a warning tells of those dropped.
    warnings.simplefilter("ignore", UserWarning)
    with joined(sizes, TIMEOUTS) as session:
        loop = make_loop(build(settings, form), ProcessMesh(session), accumulate)
        loop.train()
        if session.is_lead:
            expected = make_loop(build(settings, form), None, accumulate)
            expected.train()
            assert loop._losses == pytest.approx(expected._losses, abs=1e-12)
            wanted = expected.model.state_dict()
            for name, found in loop.model.state_dict().items():
                if found.numel():
                    difference = (found.double() - wanted[name].double()).abs().max()
                    assert float(difference) < 1e-12, name
            moments = loop.optimizer.state_dict()["state"]
            for index, entry in expected.optimizer.state_dict()["state"].items():
                for key, value in entry.items():
                    assert float((moments[index][key] - value).abs().max()) < 1e-12


@pytest.mark.timeout(600)
def test_experts_on_ranks_equal_one_process():
    cases = [(MeshSizes(*mesh).num_ranks, mesh, *how) for mesh, *how in CASES]
    run_on_ranks(train_on, cases, 4)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_grid_and_form_equals_one_process():
    grids = [(1, 1, 1, 1, 2), (1, 1, 1, 1, 4), (2, 1, 1, 1, 2), (4, 1, 1, 1, 1)]
    cases = [
        (MeshSizes(*mesh).num_ranks, mesh, settings, form, 1 + (form == "compact"))
        for mesh in grids
        for settings in (DROPLESS, TIGHT, BIAS)
        for form in ("dense", "compact")
    ]
    run_on_ranks(train_on, cases, 4)


def refused(sizes, model, **more):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    settings = {"precision": "fp32", "schedule": "1f1b", "microbatches": 1} | more
    with pytest.raises(InputError) as error:
        check_model(sizes, model, optimizer, **settings)
    return str(error.value)


def test_what_ranks_cannot_share_is_refused_before_the_first_step():
    model = build(DROPLESS, "dense")
    assert "4 experts, which 3 ranks cannot share equally" in refused(MeshSizes(expert=3), model)
    assert "goes with data and expert only" in refused(MeshSizes(tensor=2, expert=2), model)
    assert "the model has none" in refused(MeshSizes(expert=2), torch.nn.Linear(4, 4))
    model.blocks[1].moe.router.choice = "experts"
    assert "choose their tokens" in refused(MeshSizes(expert=2), model)
