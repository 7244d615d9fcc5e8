# SPDX-License-Identifier: Apache-2.0
"""`explain` says what is: of out_proj, of models pruned elsewhere, of layers nobody compiled."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import gossamer
from gossamer.errors import DenseFallback
from gossamer.io import adopt_pruned
from gossamer.running.layers import compile, explain
from gossamer.running.packed import PackedLinear


@pytest.fixture
def sparse_wins(monkeypatch):
    """The rule without measurements: a layer this sparse runs on a kernel."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


class Attends(nn.Module):
    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(24, 3, batch_first=True)
        self.last = nn.Linear(24, 8)
        if form == "zeros":
            for layer in (self.attention.out_proj, self.last):
                layer.weight.data.mul_(torch.rand_like(layer.weight) < 0.2)
        elif form != "dense":
            gossamer.sparsify(self, sparsity=0.8)
        if form == "compact":
            gossamer.compact(self)
        self.eval()

    def forward(self, x):
        return self.last(self.attention(x, x, x)[0])


def row_of(model, name):
    (row,) = [row for row in explain(model) if row.name == name]
    return row


@pytest.mark.parametrize("form", ["zeros", "masked", "compact"])
def test_out_proj_stays_dense_and_says_why_before_and_after(sparse_wins, form):
    model, x = Attends(form), torch.randn(2, 5, 24)
    before = row_of(model, "attention.out_proj")
    assert "stays dense when compiled, too: nn.MultiheadAttention reads" in before.why
    assert row_of(model, "last").why.startswith("not compiled")
    fast = compile(model, tokens=10)
    after = row_of(fast, "attention.out_proj")
    assert after.why.startswith("nn.MultiheadAttention reads its weight directly")
    assert after.kernel == "dense"
    assert after.density == pytest.approx(before.density)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    with gossamer.strict(), pytest.raises(DenseFallback, match=r"attention\.out_proj"):
        compile(model, tokens=10)


def test_a_dense_out_proj_has_nothing_to_gain(sparse_wins):
    model = Attends("dense")
    for one in (model, compile(model)):
        assert row_of(one, "attention.out_proj").why == "no mask and too few zeros to gain"


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_model_of_torch_prune_runs_and_says_what_to_call(sparse_wins, ran, inplace):
    model, x = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(5, 24)
    prune.l1_unstructured(model[0], "weight", 0.8)
    if ran:
        model(x)
    expected = model(x).detach()
    with gossamer.strict(), pytest.raises(DenseFallback, match=r"adopt_pruned\(model\)"):
        compile(model)
    fast = compile(model, tokens=5, inplace=inplace)
    torch.testing.assert_close(fast(x), expected)
    assert "adopt_pruned(model)" in row_of(fast, "0").why
    if not inplace:
        adopt_pruned(model)
        packed = compile(model, tokens=5)
        assert isinstance(packed[0], PackedLinear)
        torch.testing.assert_close(packed(x), expected, rtol=1e-5, atol=1e-5)


def test_only_sparse_kernels_count_as_sparse(sparse_wins):
    model = Attends("masked")
    model.last.register_forward_hook(lambda *_: None)
    assert not any(row.is_sparse for row in explain(model))
    assert not any(row.is_sparse for row in explain(compile(model)))
    gossamer.compact(model)
    assert not any(row.is_sparse for row in explain(model))
    assert any(row.is_sparse for row in explain(compile(Attends("masked"))))


def test_zeros_that_nobody_compiled_are_not_called_too_few():
    layer = nn.Linear(8, 8)
    layer.weight.data[:6] = 0
    assert explain(nn.Sequential(layer))[0].why.startswith("not compiled")
