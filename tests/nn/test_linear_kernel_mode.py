# SPDX-License-Identifier: Apache-2.0
"""Mode "kernel": gradients, training, new masks and edits, against mode "jit" and float64."""

import copy

import pytest
import torch
from torch import nn

import gossamer
import gossamer.nn as gnn
from gossamer.errors import DenseFallback
from gossamer.io import load, save
from gossamer.ops import strict
from gossamer.ops.fallback import fallbacks


def make(out=70, inp=110, density=0.2, mode="kernel", seed=0, bias=True, mask=None):
    torch.manual_seed(seed)
    linear = nn.Linear(inp, out, bias)
    if mask is None:
        mask = torch.rand(out, inp) < density
    return gnn.Linear.from_dense(linear, mask, mode=mode)


def twin_in_float64(layer):
    twin = copy.deepcopy(layer).double()
    twin.mode = "jit"
    return twin


def gradients(layer, x, grad):
    x = x.detach().to(layer.values.dtype).requires_grad_()
    y = layer(x)
    inputs = (x, *layer.parameters())
    return y, *torch.autograd.grad(y, inputs, grad.to(y.dtype))


def assert_same_gradients(layer, x, grad):
    with strict():
        found = gradients(layer, x, grad)
    for one, two in zip(found, gradients(twin_in_float64(layer), x, grad), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("lead", [(), (0,), (1,), (5,), (2, 0, 3), (3, 29)])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_equal_float64(lead, bias):
    layer = make(bias=bias)
    assert_same_gradients(layer, torch.randn(*lead, 110), torch.randn(*lead, 70))


def test_empty_rows_and_columns():
    mask = torch.rand(70, 110) < 0.2
    mask[5:40] = False
    mask[:, 30:90] = False
    assert_same_gradients(make(mask=mask), torch.randn(9, 110), torch.randn(9, 70))
    layer = make(mask=torch.zeros(70, 110, dtype=torch.bool))
    assert_same_gradients(layer, torch.randn(9, 110), torch.randn(9, 70))


def test_gradients_of_any_strides():
    layer, x = make(), torch.randn(110, 12).T
    layer(x).sum().backward()  # an expanded scalar
    expected = twin_in_float64(layer)
    expected(x.double()).sum().backward()
    torch.testing.assert_close(
        layer.values.grad.double(), expected.values.grad, rtol=1e-5, atol=2e-5
    )
    for grad in (
        torch.randn(70, 12).T,
        torch.randn(1, 70).expand(12, 70),
        torch.randn(12, 140)[:, ::2],
    ):
        assert_same_gradients(layer, x, grad)


def test_frozen_sides_get_no_gradient():
    layer = make()
    layer.values.requires_grad_(False)
    x = torch.randn(3, 110, requires_grad=True)
    layer(x).sum().backward()
    assert layer.values.grad is None
    assert x.grad is not None
    layer.values.requires_grad_(True)
    layer(torch.randn(3, 110)).sum().backward()
    assert layer.values.grad is not None


def test_second_derivatives_equal_those_of_jit():
    def second(layer, x):
        x = x.to(layer.values.dtype).requires_grad_()
        first = torch.autograd.grad(layer(x).pow(3).sum(), (x, layer.values), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, layer.values))

    layer, x = make(12, 20), torch.randn(4, 20)
    with strict():
        found = second(layer, x)
    for one, two in zip(found, second(twin_in_float64(layer), x.double()), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-3)


def train(layer, steps, x, target, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(layer.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (layer(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.tensor(losses)


def test_fifty_adamw_steps_follow_jit():
    layer = make()
    twin = copy.deepcopy(layer)
    twin.mode = "jit"
    x, target = torch.randn(90, 110), torch.randn(90, 70)
    torch.testing.assert_close(
        train(layer, 50, x, target), train(twin, 50, x, target), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(layer.values, twin.values, rtol=1e-3, atol=1e-4)


def test_a_new_mask_is_used_at_once():
    layer = make()
    optimizer = torch.optim.AdamW(layer.parameters(), 1e-2)
    x, target = torch.randn(20, 110), torch.randn(20, 70)
    train(layer, 2, x, target, optimizer)
    old = layer.mask()
    new = old.flatten()[torch.randperm(old.numel())].view_as(old)
    layer.remap(new, optimizer)
    assert layer.nnz == int(old.sum())
    assert_same_gradients(layer, x, target)
    train(layer, 2, x, target, optimizer)
    assert_same_gradients(layer, x, target)


def test_edits_of_the_values_are_seen():
    layer, x = make(bias=False), torch.randn(3, 110)
    before = layer(x)
    layer.values.data.mul_(2)
    torch.testing.assert_close(layer(x), 2 * before)
    layer.eval()
    with torch.no_grad():
        layer.values.zero_()
        assert not layer(x).any()


def test_nothing_but_values_and_mask_is_kept():
    layer = make()
    layer(torch.randn(3, 110)).sum().backward()
    tensors = [*layer.parameters(), *layer.buffers()]
    held = [v for v in vars(layer).values() if isinstance(v, torch.Tensor)]
    assert {id(t) for t in held} <= {id(t) for t in tensors}
    assert sum(t.numel() * t.element_size() for t in layer.buffers()) == 70 * 14


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_run_densely_and_are_counted(dtype):
    layer, x = make().to(dtype), torch.randn(3, 110, dtype=dtype)
    jit = copy.deepcopy(layer)
    jit.mode = "jit"
    before = sum(fallbacks().values())
    y = layer(x)
    assert sum(fallbacks().values()) == before + 1
    assert torch.equal(y, jit(x))
    with strict(), pytest.raises(DenseFallback, match="mode 'kernel'"):
        layer(x)


def test_autocast_gives_what_jit_gives():
    layer = make()
    jit = copy.deepcopy(layer)
    jit.mode = "jit"
    x = torch.randn(3, 110)
    with torch.autocast("cpu", torch.bfloat16):
        y, z = layer(x), jit(x)
    assert y.dtype is torch.bfloat16
    assert torch.equal(y, z)
    y.float().sum().backward()
    z.float().sum().backward()
    assert torch.equal(layer.values.grad, jit.values.grad)


def test_ops_pass_opcheck():
    layer = make(12, 20)
    x, grad = torch.randn(2, 3, 20, requires_grad=True), torch.randn(2, 3, 12, requires_grad=True)
    values, bits = layer.values, layer.mask_bits
    ops = torch.ops.gossamer
    torch.library.opcheck(ops.compact_linear.default, (x, values, bits, layer.bias, 20, True))
    torch.library.opcheck(ops.compact_linear_grad_input.default, (grad, values, bits, 20, True))
    torch.library.opcheck(
        ops.compact_linear_grad_values.default, (grad, x, bits, values.numel(), True)
    )


def test_compiles_in_one_graph():
    torch._dynamo.reset()
    layer = make()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 110)
    y = compiled(x)
    assert torch.equal(y, layer(x))
    y.sum().backward()
    assert layer.values.grad is not None


def test_compact_and_files_know_the_mode(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64))
    gossamer.sparsify(model, sparsity=0.8)
    gossamer.compact(model, mode="kernel")
    assert model[0].mode == "kernel"
    save(model, tmp_path / "a")
    back = load(tmp_path / "a")
    assert back[0].mode == "kernel"
    x = torch.randn(3, 64)
    assert torch.equal(back(x), model(x))


def test_n_m_masks():
    mask = torch.zeros(70, 110 // 5, 5, dtype=torch.bool)
    mask[..., 1] = True
    assert_same_gradients(make(mask=mask.view(70, 110)), torch.randn(9, 110), torch.randn(9, 70))
