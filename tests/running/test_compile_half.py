# SPDX-License-Identifier: Apache-2.0
"""16-bit layers on float32 kernels: as exact as dense ones, raced against dense 16-bit products."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.ops.timing import Race
from gossamer.running.choice import Chooser, CostTable
from gossamer.running.layers import compile, explain
from gossamer.running.packed import PackedConv2d, PackedLinear

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@pytest.fixture
def sparse_wins(monkeypatch):
    """The rule without measurements: a layer this sparse runs on a kernel."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


def linear(dtype, form="masked", sparsity=0.8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 64))
    gossamer.sparsify(model, sparsity=sparsity)
    model = model.to(dtype).eval()
    if form == "compact":
        gossamer.compact(model)
    if form == "plain":
        model = nn.Sequential(model[0].to_dense())
    return model


def error(y, oracle):
    assert y.isfinite().all()
    return float((y.double() - oracle).abs().max())


@HALVES
@pytest.mark.parametrize("form", ["plain", "masked", "compact"])
@pytest.mark.parametrize("shape", [(1, 200), (8, 200), (2, 33, 200), (0, 200)])
def test_a_linear_is_at_least_as_exact_as_dense(sparse_wins, dtype, form, shape):
    model = linear(dtype, form)
    fast = compile(model, tokens=(1, 8))
    assert isinstance(fast[0], PackedLinear)
    x = torch.randn(shape).to(dtype)
    dense = model[0] if form == "plain" else model[0].to_dense()
    with torch.no_grad():
        y = fast(x)
        oracle = copy.deepcopy(dense).double()(x.double())
        assert y.dtype is dtype
        assert y.shape == dense(x).shape
        if x.numel():
            assert error(y, oracle) <= error(dense(x), oracle)
    name = str(dtype).removeprefix("torch.")
    assert all(f"computed in float32, the weight is {name}" in row.why for row in explain(fast))
    assert fast[0].weight.dtype is dtype
    assert fast[0].bias.dtype is dtype


@HALVES
def test_a_convolution_is_at_least_as_exact_as_dense(sparse_wins, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    gossamer.sparsify(model, sparsity=0.8)
    model = model.to(dtype).eval()
    x = torch.randn(2, 8, 9, 7).to(dtype)
    fast = compile(model, tokens=2, example=x)
    assert isinstance(fast[0], PackedConv2d)
    with torch.no_grad():
        dense = model[0].to_dense()
        oracle = copy.deepcopy(dense).double()(x.double())
        assert error(fast[0](x), oracle) <= error(dense(x), oracle)
        torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-2)
    assert "computed in float32" in explain(fast)[0].why


@HALVES
def test_the_kept_values_come_back_as_they_were(sparse_wins, dtype):
    model = linear(dtype)
    layer = compile(model)[0].to_compact()
    assert layer.values.dtype is dtype
    assert torch.equal(layer.to_dense().weight, model[0].masked_weight())


def test_dense_runs_in_its_own_dtype_where_it_wins(sparse_wins):
    """Four in ten weights kept: by the rule dense for one token, a kernel for many."""
    model = linear(torch.bfloat16, sparsity=0.6)
    fast = compile(model, tokens=(1, 128))
    assert fast[0].dense_copy.dtype is torch.bfloat16
    for tokens in (1, 128):
        x = torch.randn(tokens, 200).bfloat16()
        y = fast(x)
        assert y.dtype is torch.bfloat16
        torch.testing.assert_close(y, model(x).detach(), rtol=2e-2, atol=2e-2)
    whys = {row.kernel: row.why for row in explain(fast)}
    assert "float32" not in whys.pop("dense")
    assert all("computed in float32" in why for why in whys.values())


def test_the_race_is_against_the_dense_layer_as_it_is(tmp_path):
    seen = []

    def timer(first, second):
        seen.append((first().dtype, second().dtype))
        return Race((100.0, 20.0))

    table = CostTable(tmp_path / "times.json")
    model = linear(torch.bfloat16)
    compile(model, tokens=128, chooser=Chooser(table, timer))
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    # A float32 layer of the same shape has a race of its own.
    seen.clear()
    compile(model.float(), tokens=128, chooser=Chooser(table, timer))
    assert set(seen) == {(torch.float32, torch.float32)}


def test_saved_and_loaded_again(sparse_wins, tmp_path):
    model = linear(torch.bfloat16)
    fast = compile(model)
    gossamer.save(fast, tmp_path / "model")
    again = gossamer.load(tmp_path / "model", linear(torch.bfloat16))
    assert torch.equal(again[0].to_dense().weight, model[0].masked_weight())
