# SPDX-License-Identifier: Apache-2.0
"""AdamW in native code: float64 oracle, equal bits on every instruction set and at every place."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.training import optimizer_passes
from gossamer.ops.training.optimizer_passes import NativeMoment
from gossamer.training.optim import AdamW

SETTINGS = (3e-3, 0.9, 0.999, 1e-8, 0.1)


def tensors(count, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight, grad, mean = (torch.randn(count, generator=generator) for _ in range(3))
    square = torch.rand(count, generator=generator) * 1e-2
    low = None
    if dtype is torch.bfloat16:
        low = torch.randint(-(2**15), 2**15, (count,), generator=generator, dtype=torch.int16)
    return weight.to(dtype), low, grad.to(dtype), mean * 0.1, square


def adamw_step(weight, low, grad, mean, square, settings, number):
    optimizer_passes.adamw_step(
        weight, low, grad, NativeMoment(mean), NativeMoment(square), settings, number
    )


def masters(weight, low):
    if low is None:
        return weight.clone()
    return (weight.view(torch.int16).int() << 16).add(low.int()).view(torch.float32)


@pytest.mark.parametrize("count", [0, 1, 7, 16, 511, 512, 513, 70_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_equals_float64(count, dtype):
    weight, low, grad, mean, square = tensors(count, dtype)
    w, g, m, v = (t.double() for t in (masters(weight, low), grad, mean, square))
    adamw_step(weight, low, grad, mean, square, SETTINGS, 7)
    lr, beta1, beta2, eps, decay = SETTINGS
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    move = lr / (1 - beta1**7) * m / (v.sqrt() / (1 - beta2**7) ** 0.5 + eps)
    expected = w * (1 - lr * decay) - move
    torch.testing.assert_close(masters(weight, low).double(), expected, rtol=3e-7, atol=1e-8)
    torch.testing.assert_close(mean.double(), m, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(square.double(), v, rtol=3e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beta1", [0.0, 0.3, 0.9])
def test_instruction_sets_and_places_give_the_same_bits(dtype, beta1, monkeypatch):
    settings = (SETTINGS[0], beta1, *SETTINGS[2:])
    results = []
    for kernels in _native.available_kernels():
        monkeypatch.setattr(
            "gossamer.ops.training.optimizer_passes.active_kernels", lambda name=kernels: name
        )
        made = tensors(40_003, dtype)
        adamw_step(*made, settings, 3)
        results.append([t for t in made if t is not None])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    # Entry 5 of a short vector, in its scalar rest, is entry 5 of a long one.
    short = [None if t is None else t[:7].clone() for t in tensors(40_003, dtype)]
    adamw_step(*short, settings, 3)
    found = [t for t in short if t is not None]
    assert all(torch.equal(a, b[:7]) for a, b in zip(found, results[-1], strict=True))


def test_nan_and_infinity_show_in_the_weight():
    weight, low, grad, mean, square = tensors(40, torch.bfloat16)
    grad[3], grad[5] = float("nan"), float("inf")
    adamw_step(weight, low, grad, mean, square, SETTINGS, 1)
    assert weight.isnan().nonzero().flatten().tolist() == [3, 5]


def network(mode="jit"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 8))
    gossamer.sparsify(model, sparsity=0.8)
    gossamer.compact(model, mode=mode)
    return model


def train(model, optimizer, steps=10):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(16, 48, generator=generator)
        optimizer.zero_grad()
        (model(x) - x[:, :8]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("mode", ["jit", "resident"])
def test_training_equals_the_plain_way_to_rounding(mode, split):
    models = [network(mode) for _ in range(2)]
    optimizers = [
        AdamW(m.parameters(), 0.01, fused=f) for m, f in zip(models, (False, True), strict=True)
    ]
    for model, optimizer in zip(models, optimizers, strict=True):
        if split:
            optimizer.split_masters([model[0].values, model[2].values])
        if mode == "resident":
            model[0].give_up_values()
        train(model, optimizer)
    for index in (0, 2):
        found = [o.master_of(m[index].values) for m, o in zip(models, optimizers, strict=True)]
        torch.testing.assert_close(*found, rtol=0, atol=2e-4)
    assert not torch.equal(models[1][2].values, network()[2].values)


def test_a_compact_step_is_the_masked_dense_one_bit_by_bit():
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(60, 70, generator=generator) < 0.1
    weight = torch.randn(60, 70, generator=generator).bfloat16()
    dense, compact = nn.Parameter(weight * mask), nn.Parameter(weight[mask])
    optimizers = [AdamW([p], 3e-3, fused=True) for p in (dense, compact)]
    for _ in range(50):
        grad = torch.randn(60, 70, generator=generator).bfloat16()
        dense.grad, compact.grad = grad * mask, grad[mask]
        for optimizer in optimizers:
            optimizer.step()
    first, second = (o.master_of(p) for o, p in zip(optimizers, (dense, compact), strict=True))
    assert torch.equal(first[mask], second)
    assert bool((first[~mask] == 0).all())


def test_autograd_notices_the_change():
    param = nn.Parameter(torch.ones(4))
    loss = (param * param).sum()
    param.grad = torch.ones(4)
    AdamW([param], fused=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_saved_state_goes_on_to_the_same_bits():
    model = network()
    optimizer = AdamW(model.parameters(), 0.01, fused=True)
    optimizer.split_masters([model[0].values])
    train(model, optimizer, 3)
    twin = copy.deepcopy(model)
    other = AdamW(twin.parameters())
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["fused"]
    train(model, optimizer, 3)
    train(twin, other, 3)
    assert torch.equal(model[0].values, twin[0].values)


def test_what_it_cannot_do_is_refused_or_done_the_plain_way():
    with pytest.raises(InputError, match="fused needs"):
        AdamW([nn.Parameter(torch.ones(2))], master="fp32", fused=True)
    turned = nn.Parameter(torch.randn(5, 6).t())
    straight = nn.Parameter(turned.detach().contiguous())
    for param, fused in ((turned, True), (straight, False)):
        param.grad = torch.ones(6, 5)
        AdamW([param], 0.1, fused=fused).step()
    assert torch.equal(turned, straight)
    wide = nn.Parameter(torch.ones(3, dtype=torch.float64))
    wide.grad = torch.ones_like(wide)
    AdamW([wide], 0.1, fused=True).step()
    assert bool((wide < 1).all())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"number": 0}, "counted from 1"),
        ({"grad": 0}, "not be null"),
        ({"low_bits": 16}, "not be null"),
        ({"low_bits": 4}, "low_bits must be"),
        ({"mean_exponents": 8}, "both moments"),
        ({"mean_exponents": 8, "square_exponents": 8}, "needs a dither"),
        ({"count": -1}, "not be negative"),
    ],
)
def test_bad_arguments_are_refused_natively(wrong, said):
    names = ["weight", "grad", "mean", "square"]
    zeros = [
        "low",
        "low_bits",
        "mean_exponents",
        "square_exponents",
        "dither_pattern",
        "dither_shifts",
    ]
    rates = dict.fromkeys(["lr", "beta1", "beta2", "eps", "weight_decay"], 0.5)
    good = {**dict.fromkeys(names, 8), **dict.fromkeys(zeros, 0), **rates, "number": 1, "count": 4}
    with pytest.raises(ValueError, match=said):
        _native.adamw_step(**{**good, **wrong}, kernels="reference")
