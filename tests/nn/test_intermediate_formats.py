"""Outputs held in compressed formats, and gradients that reach an operator compressed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn.intermediate import SparseOutput, sparsify_outputs
from gossamer.ops.fallback import fallbacks
from gossamer.ops.operators import CompressedTensor


def mlp():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 6))


X = torch.randn(9, 12, generator=torch.Generator().manual_seed(2))
ROWS = SparseOutput("threshold:0.3", temporary="csr")


def oracle(model, x):
    """The MLP with a threshold behind its ReLU, in float64."""
    w1, b1, w2, b2 = (p.detach().double().requires_grad_() for p in model.parameters())
    h = F.relu(F.linear(x.double(), w1, b1))
    h = h * (h.abs() >= 0.3)
    return F.linear(h, w2, b2), [w1, b1, w2, b2]


@pytest.mark.parametrize(
    "rule",
    [
        ROWS,
        SparseOutput("threshold:0.3", format="csr"),
        SparseOutput(temporary="csr", external="threshold:0.3", format="csr"),
        SparseOutput(temporary="csr", external="threshold:0.3", format="dense"),
    ],
    ids=str,
)
def test_trained_through_compressed_rows(rule):
    model = mlp()
    wanted, weights = oracle(model, X)
    sparsify_outputs(model, {"1/relu": rule}, X)
    with gossamer.strict():
        y = model(X)
        y.square().sum().backward()
    assert torch.allclose(y.double(), wanted, atol=1e-5)
    grads = torch.autograd.grad(wanted.square().sum(), weights)
    for param, grad in zip(model.parameters(), grads, strict=True):
        assert torch.allclose(param.grad.double(), grad, atol=1e-4)


def test_the_next_operator_gets_what_is_held():
    model, seen = mlp(), []
    sparsify_outputs(model, {"1/relu": ROWS}, X)
    model[2].register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    model(X)
    assert isinstance(seen[0], CompressedTensor)
    hidden = F.relu(model[0](X))
    kept = hidden * (hidden >= 0.3)
    assert torch.allclose(seen[0].dense(), kept)
    assert seen[0].nbytes_held == 8 * int((kept != 0).sum()) + 4 * 10


def test_chains_of_compressed_operators():
    class Chain(nn.Module):
        def forward(self, x, y):
            a, b = torch.relu(x), F.gelu(y)
            return F.silu(a + b * 2.0) @ x.T

    x, y = X[:4].clone().requires_grad_(), X[5:].clone().requires_grad_()
    dense = Chain()(x, y)
    model = Chain()
    rule = SparseOutput(temporary="csr")
    sparsify_outputs(
        model, {"/relu": rule, "/gelu": rule, "/mul": rule, "/add": rule, "/silu": rule}, (x, y)
    )
    with gossamer.strict():
        sparse = model(x, y)
    assert torch.allclose(sparse, dense, atol=1e-5)
    # GELU is never exactly zero here, so nothing is lost but entries that ReLU made zero.
    grads = torch.autograd.grad(sparse.sum(), [x, y])
    for got, want in zip(grads, torch.autograd.grad(dense.sum(), [x, y]), strict=True):
        assert torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("target", ["0/linear", "2/linear"])
def test_compressed_gradients(target):
    model, other = mlp(), mlp()
    rule = SparseOutput(gradient="fraction:0.75", gradient_format="csr")
    sparsify_outputs(model, {target: rule}, X)
    sparsify_outputs(other, {target: SparseOutput(gradient="fraction:0.75")}, X)
    for one in (model, other):
        with gossamer.strict():
            (one(X) * torch.arange(6.0)).square().sum().backward()
    for got, want in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(got.grad, want.grad, atol=1e-4)


def test_compiled_with_zeros_in_place_which_is_counted():
    model = mlp()
    sparsify_outputs(
        model,
        {"1/relu": ROWS, "2/linear": SparseOutput(gradient="threshold:0.1", gradient_format="csr")},
        X,
    )
    wanted = model(X)
    before = sum(fallbacks().values())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(X), wanted, atol=1e-6)
    compiled(X).sum().backward()
    assert sum(fallbacks().values()) == before + 2
    assert any("1/relu: csr has a size" in reason for reason in fallbacks())
    exported = torch.export.export(model, (X,)).module()
    assert torch.allclose(exported(X), wanted, atol=1e-6)
    with gossamer.strict(), pytest.raises(Exception, match="csr has a size"):
        torch.export.export(model, (X,))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"format": "cs"}, "Did you mean 'csr'"),
        ({"temporary": "csr", "gradient": "through"}, "leave gradient out"),
        ({"gradient": "through", "gradient_format": "csr"}, "which is dense"),
    ],
)
def test_bad_outputs(settings, part):
    with pytest.raises(InputError, match=part):
        SparseOutput("threshold:1", **settings)
