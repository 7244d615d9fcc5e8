# SPDX-License-Identifier: Apache-2.0
"""State: saved and loaded to the bit, carried over by compact, refused where it does not fit."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.training.optim import LAMB, LARS, SGD, AdamW

KINDS = [
    {"master": master, "moments": moments}
    for master in ("split", "split8", "fp32")
    for moments in ("fp32", "8bit")
]
BUILDERS = {
    "adamw": lambda params, **kw: AdamW(params, 1e-2, **kw),
    "sgd": lambda params, **kw: SGD(params, 0.05, 0.9, **kw),
    "lamb": lambda params, **kw: LAMB(params, 1e-2, **kw),
    "lars": lambda params, **kw: LARS(params, 1.0, trust=0.02, **kw),
}


def network(dtype=torch.bfloat16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(23, 40), nn.Tanh(), nn.Linear(40, 3)).to(dtype)


def train(model, optimizer, steps, seed, dtype=None):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 23, generator=generator).to(dtype or next(model.parameters()).dtype)
        optimizer.zero_grad()
        (model(x).float() - x[:, :3].float()).square().mean().backward()
        optimizer.step()


def same_state(first, second):
    """Whether two optimizers of two models hold the same bits."""
    pairs = zip(first.param_groups[0]["params"], second.param_groups[0]["params"], strict=True)
    for a, b in pairs:
        assert torch.equal(a, b)
        assert set(first.state[a]) == set(second.state[b])
        for key, value in first.state[a].items():
            other = second.state[b][key]
            assert value.dtype is other.dtype, key
            assert torch.equal(value, other), key


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k['master']}-{k['moments']}")
@pytest.mark.parametrize("name", BUILDERS)
def test_saved_state_goes_on_to_the_same_bits(name, kind):
    model = network()
    optimizer = BUILDERS[name](model.parameters(), **kind)
    train(model, optimizer, 5, seed=1)
    twin = copy.deepcopy(model)
    other = BUILDERS[name](twin.parameters())  # settings come with the state
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    same_state(optimizer, other)
    train(model, optimizer, 5, seed=2)
    train(twin, other, 5, seed=2)
    same_state(optimizer, other)


def test_a_loaded_state_is_a_copy():
    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, 1, seed=1)
    saved = optimizer.state_dict()
    other = AdamW(copy.deepcopy(model).parameters())
    other.load_state_dict(saved)
    before = other.state_dict()["state"][0]["exp_avg"].clone()
    train(model, optimizer, 2, seed=2)
    assert torch.equal(other.state_dict()["state"][0]["exp_avg"], before)


def test_state_of_torchs_adamw_can_be_taken_over():
    model = network(torch.float32)
    theirs = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    train(model, theirs, 3, seed=1)
    twin = copy.deepcopy(model)
    ours = AdamW(twin.parameters(), 1e-2)
    ours.load_state_dict({**ours.state_dict(), "state": theirs.state_dict()["state"]})
    train(model, theirs, 3, seed=2)
    train(twin, ours, 3, seed=2)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k['master']}-{k['moments']}")
@pytest.mark.parametrize("name", BUILDERS)
def test_compact_carries_the_state_bit_by_bit(name, kind):
    model = network()
    optimizer = BUILDERS[name](model.parameters(), **kind)
    train(model, optimizer, 5, seed=1)
    gossamer.sparsify(model, sparsity=0.8)
    masks = [model[0].mask(), model[2].mask()]
    layers = [model[0], model[2]]
    masters = [optimizer.master_of(layer.weight)[m] for layer, m in zip(layers, masks, strict=True)]
    moments = [
        [moment.read(optimizer.state[layer.weight], 0, m.numel()).clone()[m.view(-1)]
         for moment in optimizer.MOMENTS]
        for layer, m in zip(layers, masks, strict=True)
    ]  # fmt: skip
    gossamer.compact(model, optimizer)
    for index, layer in enumerate((model[0], model[2])):
        values, state = layer.values, optimizer.state[layer.values]
        assert set(state) == set(optimizer.state_spec(values, optimizer.param_groups[0]))
        assert torch.equal(optimizer.master_of(values), masters[index])
        for moment, expected in zip(optimizer.MOMENTS, moments[index], strict=True):
            assert torch.equal(moment.read(state, 0, values.numel()), expected)
        assert float(state["step"]) == 5
    train(model, optimizer, 3, seed=2)


@pytest.mark.parametrize("mode", ["jit", "resident", "kernel"])
@pytest.mark.parametrize("moments", ["fp32", "8bit"])
def test_masks_move_with_the_state_of_survivors(mode, moments):
    model = network(torch.float32)
    gossamer.sparsify(model, sparsity=0.5)
    gossamer.compact(model, mode=mode)
    layer = model[0]
    optimizer = AdamW(model.parameters(), 1e-2, moments=moments)
    optimizer.split_masters([layer.values])
    train(model, optimizer, 5, seed=1, dtype=torch.float32)
    old, new = layer.mask(), layer.mask().roll(3, 1)
    masters = torch.zeros(old.shape).masked_scatter_(old, optimizer.master_of(layer.values))
    before = optimizer.MOMENTS[1].read(optimizer.state[layer.values], 0, layer.nnz)
    before = torch.zeros(old.shape).masked_scatter_(old, before)
    layer.remap(new, optimizer)
    assert torch.equal(optimizer.master_of(layer.values), torch.where(old, masters, 0.0)[new])
    after = optimizer.MOMENTS[1].read(optimizer.state[layer.values], 0, layer.nnz)
    assert torch.equal(after, before[new])
    train(model, optimizer, 3, seed=2, dtype=torch.float32)


@pytest.mark.parametrize("moments", ["fp32", "8bit"])
def test_masked_layers_train_as_well(moments):
    model = network()
    gossamer.sparsify(model, sparsity=0.8)
    optimizer = AdamW(model.parameters(), 1e-2, moments=moments)
    train(model, optimizer, 20, seed=1)
    weight = model[0].to_dense().weight
    assert bool((weight[~model[0].mask()] == 0).all())
    assert optimizer.state[model[0].weight]["master_low"].shape == model[0].weight.shape


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("name", BUILDERS)
def test_layers_that_keep_nothing_or_one_weight(name, kept):
    model = nn.Sequential(nn.Linear(23, 3))
    mask = torch.zeros(3, 23, dtype=torch.bool)
    mask[0, :kept] = True
    model[0] = gossamer.nn.Linear.from_dense(model[0], mask)
    optimizer = BUILDERS[name](model.parameters(), moments="8bit")
    optimizer.split_masters([model[0].values])
    train(model, optimizer, 3, seed=0, dtype=torch.float32)
    other = BUILDERS[name](copy.deepcopy(model).parameters())
    other.load_state_dict(optimizer.state_dict())
    values = next(iter(other.param_groups[0]["params"]))
    assert ("step" in other.state[values]) == bool(kept)


def test_splitting_keeps_master_gradient_and_moments():
    model = network(torch.float32)
    optimizer = AdamW(model.parameters(), 1e-2)
    train(model, optimizer, 3, seed=1)
    weight = model[0].weight
    before = weight.detach().clone()
    mean = optimizer.state[weight]["exp_avg"].clone()
    assert optimizer.split_masters([weight]) == 1
    assert weight.dtype is torch.bfloat16
    assert weight.grad.dtype is torch.bfloat16
    assert torch.equal(optimizer.master_of(weight), before)
    assert torch.equal(optimizer.state[weight]["exp_avg"], mean)
    assert optimizer.split_masters([weight]) == 0
    optimizer.step()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s["state"][0].update(extra=torch.ones(2)), "expected .*; found .*extra"),
        (lambda s: s["state"][0].pop("exp_avg"), "expected exp_avg, "),
        (lambda s: s["state"][0].update(exp_avg=torch.ones(3)), r"exp_avg is torch.float32 \[3\]"),
        (lambda s: s["state"][0].update(exp_avg=torch.ones(40, 23).half()), "float16"),
        (lambda s: s["state"].update({99: {}}), r"unknown parameters \[99\]"),
        (lambda s: s["param_groups"][0]["params"].pop(), r"groups of \[3\].*has \[4\]"),
        (lambda s: s.pop("state"), "param_groups and state"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_nothing_changes(change, text):
    model = network()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, 2, seed=1)
    saved = copy.deepcopy(optimizer.state_dict())
    change(saved)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(InputError, match=text):
        optimizer.load_state_dict(saved)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(after["state"][0][k], v) for k, v in before["state"][0].items())
