# SPDX-License-Identifier: Apache-2.0
"""Optimizers of tables: torch's results where torch has them, fused or not, resumed to the bit."""

import copy

import pytest
import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn import EmbeddingBag
from gossamer.training.optim.tables import TableAdagrad, TableAdam, TableSGD

KINDS = (TableSGD, TableAdagrad, TableAdam)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def table(bits=None, width=19, **how):
    weight = torch.randn(60, width, generator=generator(0))
    stock = nn.EmbeddingBag(60, width, mode="sum", _weight=weight, sparse=True)
    return stock if bits == "stock" else EmbeddingBag.from_dense(stock, bits=bits, **how)


def train(layer, optimizer, steps, start=0):
    losses = []
    for step in range(start, start + steps):
        ids = torch.randint(0, 60, (12, 5), generator=generator(step))
        loss = (layer(ids) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_sgd_is_that_of_torch():
    ours, theirs = table(), table("stock")
    train(ours, TableSGD([ours.weight], lr=0.3), 8)
    train(theirs, torch.optim.SGD([theirs.weight], lr=0.3), 8)
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-5)


def test_adam_is_the_sparse_adam_of_torch():
    ours, theirs = table(), table("stock")
    train(ours, TableAdam([ours.weight], lr=0.02), 8)
    train(theirs, torch.optim.SparseAdam([theirs.weight], lr=0.02), 8)
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-5)


def test_adagrad_keeps_one_number_for_a_row():
    layer = table()
    optimizer = TableAdagrad([layer.weight], lr=0.1, eps=1e-3, initial=0.5)
    weight, sums = layer.weight.detach().double(), torch.full((60,), 0.5, dtype=torch.float64)
    for step in range(5):
        ids = torch.randint(0, 60, (12, 5), generator=generator(step))
        dense = nn.EmbeddingBag(60, 19, mode="sum", _weight=weight.clone())
        (dense(ids) - 1).square().mean().backward()
        grad = dense.weight.grad
        sums += grad.square().mean(1)
        weight -= 0.1 / (sums.sqrt() + 1e-3)[:, None] * grad
    train(layer, optimizer, 5)
    assert torch.allclose(layer.weight.double(), weight, atol=1e-5)
    assert optimizer.state[layer.weight]["sums"].shape == (60,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_fused_and_unfused_give_the_same_bits(kind, bits):
    found = []
    for fused in (False, True):
        layer = table(bits)
        train(layer, kind([layer.weight], lr=0.05, fused=fused), 6)
        found.append(layer.weight.detach())
        assert fused == (layer.weight.grad is None) or not fused
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("bits", [8, 4])
def test_codes_are_trained_in_place_and_learn(kind, bits):
    found = []
    for fused in (False, True):
        layer = table(bits, granularity="row", shadow=False)
        lr = {TableSGD: 20.0, TableAdagrad: 0.1}[kind]
        optimizer = kind([layer.weight], lr=lr, fused=fused, seed=3)
        losses = train(layer, optimizer, 150)
        assert sum(losses[-10:]) < 0.35 * sum(losses[:10])
        found.append((layer.weight.detach(), layer.scales))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_state_without_a_shadow_is_below_two_bytes_per_weight():
    layer = table(8, width=64, granularity="row", shadow=False)
    optimizer = TableAdagrad([layer.weight])
    train(layer, optimizer, 1)
    held = [*layer.parameters(), *layer.buffers()]
    held += [t for t in optimizer.state[layer.weight].values() if t.ndim]
    assert sum(t.nbytes for t in held) <= 2 * 60 * 64


@pytest.mark.parametrize("how", [{"bits": 4}, {"bits": 4, "granularity": "row", "shadow": False}])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [False, True])
def test_a_resumed_run_is_the_same_to_the_bit(kind, fused, how):
    if kind is TableAdam and not how.get("shadow", True):
        pytest.skip("Adam is for tables with a shadow")

    def made():
        layer = table(**how)
        return layer, kind([layer.weight], lr=0.05, fused=fused)

    whole, optimizer = made()
    train(whole, optimizer, 9)
    half, first = made()
    train(half, first, 4)
    other, second = made()
    other.load_state_dict(half.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(other, second, 5, start=4)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_the_seed_is_what_noise_depends_on():
    found = []
    for seed in (1, 1, 2):
        layer = table(8, granularity="row", shadow=False)
        train(layer, TableSGD([layer.weight], lr=5.0, seed=seed), 3)
        found.append(layer.weight.detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("kind", KINDS)
def test_decay_is_refused(kind):
    layer = table()
    with pytest.raises(InputError, match="weight decay"):
        kind([layer.weight], weight_decay=0.1)
    with pytest.raises(InputError, match="no weight decay"):
        kind([{"params": [layer.weight], "weight_decay": 0.1}])


def test_it_stands_beside_another_optimizer():
    model = nn.ModuleDict({"table": table(4), "dense": nn.Linear(19, 2)})
    tables = TableAdagrad([{"params": [model["table"].weight], "lr": 0.05}], fused=True)
    dense = torch.optim.AdamW(model["dense"].parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(tables, 1, gamma=0.5)
    before = [p.detach().clone() for p in model.parameters()]
    ids = torch.randint(0, 60, (12, 5), generator=generator(1))
    model["dense"](model["table"](ids)).square().mean().backward()
    tables.step()
    dense.step()
    schedule.step()
    assert tables.param_groups[0]["lr"] == 0.025
    assert all(
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )
    touched = (before[0] != model["table"].weight).any(1)
    assert set(touched.nonzero()[:, 0].tolist()) <= set(ids.flatten().tolist())


def test_accumulated_gradients_are_one_step():
    one, two = table(), table()
    first, second = TableAdagrad([one.weight]), TableAdagrad([two.weight])
    ids = torch.randint(0, 60, (12, 5), generator=generator(1))
    one(ids).square().sum().backward()
    for part in ids.split(6):
        two(part).square().sum().backward()
    first.step()
    second.step()
    assert torch.allclose(one.weight, two.weight, atol=1e-6)
    codes = table(8, granularity="row", shadow=False)
    optimizer = TableSGD([codes.weight], lr=0.1)
    for part in ids.split(6):
        codes(part).sum().backward()
    optimizer.step()
    assert int(optimizer.state[codes.weight]["step"]) == 1


def test_fused_two_lookups_before_a_step_are_refused():
    layer = table()
    optimizer = TableSGD([layer.weight], fused=True)
    ids = torch.tensor([[1, 2]])
    layer(ids).sum().backward()
    with pytest.raises(InputError, match="looked up twice"):
        layer(ids).sum().backward()
    optimizer.step()
    layer(ids).sum().backward()


def test_dense_gradients_and_vectors_are_refused():
    stock = nn.EmbeddingBag(5, 3, mode="sum")
    optimizer = TableSGD([stock.weight])
    stock(torch.tensor([[1]])).sum().backward()
    with pytest.raises(InputError, match="found a dense"):
        optimizer.step()
    with pytest.raises(InputError, match="matrices of tables"):
        TableSGD([nn.Parameter(torch.zeros(3))])
    codes = table(8, granularity="row", shadow=False)
    with pytest.raises(InputError, match="8 bytes per weight"):
        train(codes, TableAdam([codes.weight]), 1)


def test_stock_tables_with_sparse_gradients_are_taken():
    ours, theirs = table(), table("stock")
    train(ours, TableAdagrad([ours.weight]), 4)
    train(theirs, TableAdagrad([theirs.weight]), 4)
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)
