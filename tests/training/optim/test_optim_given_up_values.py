# SPDX-License-Identifier: Apache-2.0
"""Values that live in the dense weight only: same bits, fewer bytes, loud where it cannot work."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.training.optim import LAMB, LARS, SGD, AdamW


def network(mode="resident"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 8))
    gossamer.sparsify(model, sparsity=0.8)
    gossamer.compact(model, mode=mode)
    return model


def give_up(model):
    for layer in (model[0], model[2]):
        layer.give_up_values()


def train(model, optimizer, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 48, generator=generator)
        optimizer.zero_grad()
        (model(x) - x[:, :8]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", [AdamW, SGD, LAMB, LARS])
def test_training_gives_the_same_bits(kind, split):
    model, twin = network(), network()
    optimizers = [kind(m.parameters(), 0.01) for m in (model, twin)]
    if split:
        for m, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.split_masters([m[0].values, m[2].values])
    give_up(twin)
    assert twin[0].values.untyped_storage().nbytes() <= 4
    for m, optimizer in zip((model, twin), optimizers, strict=True):
        train(m, optimizer, 10)
    for index in (0, 2):
        assert torch.equal(twin[index].kept_values(), model[index].values)
        assert torch.equal(twin[index].dense_weight(), model[index].dense_weight())
        assert torch.equal(
            optimizers[1].master_of(twin[index].values),
            optimizers[0].master_of(model[index].values),
        )
    assert twin[0].values.isnan().all()


def test_saving_loading_copying_and_casting_carry_the_numbers(tmp_path):
    model = network()
    expected = model[0].values.detach().clone()
    give_up(model)
    state = model.state_dict()
    assert torch.equal(state["0.values"], expected)
    other = network()
    with torch.no_grad():
        other[0].values.zero_()
    give_up(other)
    other.load_state_dict(state)
    assert torch.equal(other[0].kept_values(), expected)
    twin = copy.deepcopy(model)
    assert twin[0].values.untyped_storage().nbytes() <= 4
    twin[0]._home.write(torch.zeros_like(expected))
    assert torch.equal(model[0].kept_values(), expected)
    train(twin, AdamW(twin.parameters(), 0.1), 1)
    assert not torch.equal(twin[0].kept_values(), torch.zeros_like(expected))
    model.double()
    assert torch.equal(model[0].kept_values(), expected.double())
    assert model[0].values.isnan().all()
    gossamer.save(model, tmp_path / "model")
    loaded = gossamer.load(tmp_path / "model")
    assert torch.equal(loaded[0].values, expected.double())
    gossamer.load(tmp_path / "model", model=model)
    x = torch.randn(2, 48, dtype=torch.float64)
    torch.testing.assert_close(model(x), loaded(x))


def test_masks_move_and_values_come_back():
    model = network()
    optimizer = AdamW(model.parameters(), 0.01)
    give_up(model)
    train(model, optimizer, 2)
    dense = model[0].dense_weight()
    new = model[0].mask().roll(1, 1)
    old = model[0].mask()
    model[0].remap(new, optimizer)
    assert torch.equal(model[0].dense_weight(), torch.where(new & old, dense, 0.0))
    assert model[0].values.isnan().all()
    train(model, optimizer, 2)
    dense = model[0].dense_weight()
    assert model[0].take_back_values()
    assert not model[0].take_back_values()
    assert torch.equal(model[0].values, dense[new])
    train(model, torch.optim.AdamW(model[0].parameters()), 1)


def test_what_cannot_work_is_refused():
    with pytest.raises(InputError, match="mode 'jit'"):
        network("jit")[0].give_up_values()
    model = network()
    give_up(model)
    model[0].mode = "kernel"
    with pytest.raises(InputError, match="take_back_values"):
        model(torch.randn(2, 48))
    model[0].mode = "resident"
    with pytest.raises(InputError, match="Split first"):
        AdamW(model.parameters()).split_masters()
    x = torch.randn(2, 48, requires_grad=True)
    (dx,) = torch.autograd.grad(model(x).sum(), x)
    assert dx.isfinite().all()
    with pytest.raises(InputError, match="second derivatives"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    model(x).sum().backward()
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.optim.AdamW([model[0].values], foreach=False).step()


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_few_values(kept):
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask.view(-1)[:kept] = True
    model = nn.Sequential(gossamer.nn.Linear.from_dense(nn.Linear(4, 3), mask, mode="resident"))
    expected = model[0].values.detach().clone()
    model[0].give_up_values()
    assert torch.equal(model[0].kept_values(), expected)
    optimizer = AdamW(model.parameters(), 0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert model[0].kept_values().isfinite().all()
