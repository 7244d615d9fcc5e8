# SPDX-License-Identifier: Apache-2.0
"""A backward that is asked for one gradient computes that one alone."""

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils._python_dispatch import TorchDispatchMode

import gossamer.nn as gnn


class Products(TorchDispatchMode):
    """Counts the two products of a backward by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        if "gossamer" in name or "aten.mm" in name:
            self.names.append("values" if "grad_values" in name else "input")
        return function(*args, **(kwargs or {}))


def layers(mode):
    torch.manual_seed(0)
    made = [nn.Linear(8, 8) for _ in range(2)]
    return nn.Sequential(
        *(gnn.Linear.from_dense(layer, torch.rand(8, 8) < 0.5, mode=mode) for layer in made)
    )


def convolutions():
    torch.manual_seed(0)
    made = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(2)]
    return nn.Sequential(
        *(gnn.Conv2d.from_dense(conv, torch.rand(3, 27) < 0.5, mode="kernel") for conv in made)
    )


CASES = {
    "jit": (lambda: layers("jit"), (4, 8)),
    "resident": (lambda: layers("resident"), (4, 8)),
    "kernel": (lambda: layers("kernel"), (4, 8)),
    "conv": (convolutions, (2, 3, 5, 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_split_backward_does_each_product_once(case):
    make, shape = CASES[case]
    model, x = make(), torch.randn(shape, requires_grad=True)
    model(x).square().sum().backward()
    expected = [p.grad for p in model.parameters()], x.grad
    model.zero_grad()
    x.grad = None

    loss = model(x).square().sum()
    with Products() as first:
        (grad,), groups = stage_backward_input([loss], None, [x], model.parameters())
    with Products() as second:
        stage_backward_weight(model.parameters(), groups)
    assert first.names == ["input", "input"]
    assert second.names == ["values", "values"]
    assert torch.equal(grad, expected[1])
    assert all(
        torch.equal(p.grad, wanted)
        for p, wanted in zip(model.parameters(), expected[0], strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_a_whole_backward_does_both(case):
    make, shape = CASES[case]
    model, x = make(), torch.randn(shape, requires_grad=True)
    loss = model(x).square().sum()
    with Products() as both:
        loss.backward()
    assert sorted(both.names) == ["input", "input", "values", "values"]


def test_gradients_of_leaves_that_are_asked_for_by_name():
    model, x = layers("jit"), torch.randn(4, 8, requires_grad=True)
    for wanted in (x, model[0].values, model[0].bias):
        (found,) = torch.autograd.grad(model(x).sum(), wanted)
        assert found.shape == wanted.shape
        assert found.abs().sum() > 0
