# SPDX-License-Identifier: Apache-2.0
"""ReLU, ELU and dropout of large features: torch's bits in memory that is used again."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from gossamer.ops import elementwise
from gossamer.ops.results import drop_results, result_bytes

ROWS, WIDTH = 1100, 1001  # 4.2 MiB

PAIRS = {
    "relu": (elementwise.relu, F.relu),
    "elu": (lambda x: elementwise.elu(x, 0.7), lambda x: F.elu(x, 0.7)),
    "add": (lambda x: elementwise.add(x, 2 * x), lambda x: x + 2 * x),
    "dropout": (lambda x: elementwise.dropout(x, 0.3), lambda x: F.dropout(x, 0.3)),
}
both = pytest.mark.parametrize("name", PAIRS)


@pytest.fixture(autouse=True)
def _nothing_kept():
    gc.collect()
    drop_results()
    yield
    drop_results()


def features(rows=ROWS, dtype=torch.float32):
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows)).to(dtype)
    x[::7] = 0.0
    x[:1, :1] = float("nan")
    return x


def forward_and_backward(function, x):
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    y = function(x)
    (y * torch.arange(float(WIDTH))).sum().backward()
    return y.detach(), x.grad


@both
@pytest.mark.parametrize("rows", [0, 1, ROWS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_same_bits_as_torch(name, rows, dtype):
    ours, theirs = (forward_and_backward(f, features(rows, dtype)) for f in PAIRS[name])
    for found, expected in zip(ours, theirs, strict=True):
        assert found.dtype is expected.dtype
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(found.isnan(), expected.isnan())


@both
def test_memory_of_large_results_is_used_again(name):
    x, size = features(), ROWS * WIDTH * 4
    with torch.no_grad():
        y = PAIRS[name][0](x)
    assert result_bytes()[0] == size
    where = y.data_ptr()
    del y
    assert result_bytes()[0] == 0
    with torch.no_grad():
        again = PAIRS[name][0](x)
    if name != "dropout":  # it takes two
        assert again.data_ptr() == where


@both
def test_gradients_of_gradients(name):
    def penalty(function, x):
        torch.manual_seed(3)
        (dx,) = torch.autograd.grad(function(x).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(dx.pow(2).sum(), x)[0]

    x = features().nan_to_num(1.0).requires_grad_()
    found, expected = (penalty(f, x) for f in PAIRS[name])
    torch.testing.assert_close(found, expected)


@both
def test_what_they_cannot_take_goes_to_torch(name):
    ours, theirs = PAIRS[name]
    for x in (features()[:, ::2], features().view(11, 100, WIDTH)):
        torch.manual_seed(1)
        found = ours(x)
        torch.manual_seed(1)
        assert torch.equal(found.nan_to_num(7.0), theirs(x).nan_to_num(7.0))
        del found
    assert result_bytes()[0] == 0


@both
def test_transforms_of_torch_see_the_function(name):
    if name == "dropout":
        pytest.skip("torch.func has no random numbers of its own here")
    ours, theirs = PAIRS[name]
    x = features().nan_to_num(1.0)
    gradient = torch.func.grad(lambda x: ours(x).sum())(x)
    assert torch.equal(gradient, torch.func.grad(lambda x: theirs(x).sum())(x))
    assert torch.equal(torch.vmap(ours)(x.view(1, ROWS, WIDTH))[0], theirs(x))
    traced = make_fx(lambda x: ours(x))(x)
    assert f"aten.{name}" in traced.code
    assert torch.equal(traced(-x), theirs(-x))


def test_settings_of_dropout_that_draw_nothing():
    x = features()
    assert elementwise.dropout(x, 0.5, training=False) is x
    assert not elementwise.dropout(x, 1.0).nan_to_num(0.0).any()
    assert torch.equal(elementwise.relu(x.clone(), inplace=True).isnan(), x.isnan())
