# SPDX-License-Identifier: Apache-2.0
"""`reopen`: RigL from the masks that are there, whose density moves."""

import copy
import itertools

import pytest
import torch
from schedule_runs import attach, batch_loss, batch_of, make_model, make_optimizer, train_step

import gossamer
from gossamer.errors import InputError, RecipeError
from gossamer.pruning.schedules.base import cubic

STEPS = 20


def pruned(sparsity=0.5, pattern="unstructured"):
    model = make_model()
    gossamer.sparsify(model, sparsity=sparsity, pattern=pattern)
    return model


def given(**changes):
    return {"kind": "reopen", "begin": 2, "end": 14, "every": 4, "sparsity": 0.2, **changes}


def run(model, settings, optimizer="adamw"):
    optimizer = make_optimizer(optimizer, model)
    ctl = attach(model, optimizer, settings, STEPS)
    history = []
    for step in range(1, STEPS + 1):
        train_step(model, optimizer, ctl, step)
        history.append({n: m.mask().clone() for n, m in masked(model).items()})
    return ctl, history


def masked(model):
    return {n: m for n, m in model.named_modules() if hasattr(m, "mask_bits")}


@pytest.mark.parametrize("sparsity", [0.2, 0.5, 0.9])
def test_density_moves_from_the_masks_to_the_wanted_one_and_settles(sparsity):
    model = pruned(0.5)
    first = {n: m.mask().clone() for n, m in masked(model).items()}
    ctl, history = run(model, given(sparsity=sparsity))
    for name, mask in first.items():
        size = mask.numel()
        for step, masks in enumerate(history, start=1):
            last = max((s for s in (2, 6, 10, 14) if s <= step), default=0)
            end = round((1 - sparsity) * size)
            wanted = round(cubic(int(mask.sum()), end, max(0, last - 2) / 12))
            assert abs(int(masks[name].sum()) - wanted) <= 1, (name, step)
    assert ctl.is_settled
    assert ctl.sparsity() == pytest.approx(sparsity, abs=0.01)


def test_opening_keeps_everything_and_opens_the_largest_gradients():
    model = pruned(0.5)
    optimizer = make_optimizer("sgd", model)
    ctl = attach(model, optimizer, given(begin=3, end=4, every=1), STEPS)
    for step in range(1, 4):
        train_step(model, optimizer, ctl, step)
    before = {n: m.mask().clone() for n, m in masked(model).items()}
    twin = copy.deepcopy(model)
    for layer in masked(twin).values():
        layer.weight.data.copy_(layer.masked_weight().detach())
        layer.set_mask(torch.ones_like(layer.mask()))
    batch_loss(twin, batch_of(4)).backward()
    train_step(model, optimizer, ctl, 4)
    for name, layer in masked(model).items():
        old, new = before[name], layer.mask()
        assert not (old & ~new).any()
        opened = new & ~old
        gradient = twin.get_submodule(name).weight.grad.abs().masked_fill(old, -1.0)
        best = gradient.flatten().topk(int(opened.sum())).indices
        wanted = torch.zeros(old.numel(), dtype=torch.bool)
        wanted[best] = True
        assert torch.equal(opened, wanted.view_as(opened))
        assert not layer.weight.detach()[opened].any()


def test_closing_drops_the_smallest_and_opens_nothing():
    model = pruned(0.5)
    _, history = run(model, given(sparsity=0.9))
    for early, late in itertools.pairwise(history):
        for name, mask in early.items():
            assert not (late[name] & ~mask).any()


def test_an_exchange_beside_it():
    _, history = run(pruned(0.5), given(sparsity=0.5, drop=0.5))
    counts = [[int(mask.sum()) for mask in masks.values()] for masks in history]
    assert all(now == counts[0] for now in counts)
    assert any((history[0][n] != history[-1][n]).any() for n in history[0])


def test_blocks_stay_blocks_and_dense_layers_stay_dense():
    model = make_model()
    gossamer.sparsify(model, sparsity=0.5, pattern="block:4x4", targets=["0"])
    ctl, _ = run(model, given(sparsity=0.25, pattern="block:4x4"))
    assert str(model[0].pattern) == "block:4x4"
    model[0].pattern.validate(model[0].mask())
    assert type(model[2]) is torch.nn.Linear
    assert ctl.sparsity() == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("stop", [1, 3, 6, 7, 13, 16])
def test_resumed_to_the_bit(stop):
    whole = pruned()
    run(whole, given(drop=0.2, gradient_steps=2))
    model = pruned()
    optimizer = make_optimizer("adamw", model)
    ctl = attach(model, optimizer, given(drop=0.2, gradient_steps=2), STEPS)
    for step in range(1, stop + 1):
        train_step(model, optimizer, ctl, step)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), ctl.state_dict()))
    model = pruned()
    optimizer = make_optimizer("adamw", model)
    ctl = attach(model, optimizer, given(drop=0.2, gradient_steps=2), STEPS)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    ctl.load_state_dict(state[2])
    for step in range(stop + 1, STEPS + 1):
        train_step(model, optimizer, ctl, step)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_what_it_cannot_go_on_from():
    model = make_model()
    with pytest.raises(InputError, match="no layer of the model has a mask"):
        attach(model, make_optimizer("adamw", model), given(), STEPS)
    assert not masked(model)
    model = pruned()
    with pytest.raises(InputError, match="is not one of block:4x4"):
        attach(model, make_optimizer("adamw", model), given(pattern="block:4x4"), STEPS)
    with pytest.raises(RecipeError, match="drop"):
        attach(model, make_optimizer("adamw", model), given(drop=1.5), STEPS)
