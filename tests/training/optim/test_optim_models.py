# SPDX-License-Identifier: Apache-2.0
"""Whole models: 50 steps compact and masked dense, and training with 8-bit state."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import gossamer
from gossamer.training.optim import AdamW, halves
from gossamer.zoo import GPT, MLP, accuracy, cluster_problem


class MaskedDense(nn.Module):
    """A Linear with a dense bf16 weight: what compact training must reproduce."""

    def __init__(self, compact):
        super().__init__()
        self.mask = compact.mask()
        self.weight = nn.Parameter(compact.dense_weight())
        self.bias = compact.bias

    def forward(self, x):
        kept = torch.where(self.mask, self.weight, 0.0)
        return linear(x, kept.to(x.dtype), self.bias)


class DenseMasterAdamW:
    """torch's AdamW on fp32 masters; weights are the masters rounded half up."""

    def __init__(self, params, lr):
        self.params = list(params)
        self.masters = [nn.Parameter(p.detach().float()) for p in self.params]
        self.optimizer = torch.optim.AdamW(self.masters, lr, foreach=False)

    def zero_grad(self):
        for param in self.params:
            param.grad = None

    @torch.no_grad()
    def step(self):
        for param, master in zip(self.params, self.masters, strict=True):
            master.grad = param.grad.float()
        self.optimizer.step()
        for param, master in zip(self.params, self.masters, strict=True):
            narrow = param.dtype is torch.bfloat16
            param.copy_(halves.rounded(master.detach()) if narrow else master)


def pair(mode, whole_in_bf16):
    """A compact model, its masked dense twin, and an optimizer for each."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4)
    )
    gossamer.sparsify(model, sparsity=0.9)
    gossamer.compact(model, mode=mode)
    if whole_in_bf16:
        model.to(torch.bfloat16)
    else:
        for index in (0, 2, 4):
            model[index].values.data = model[index].values.data.to(torch.bfloat16)
    twin = nn.Sequential(
        *(MaskedDense(m) if hasattr(m, "values") else m for m in copy.deepcopy(model))
    )
    return model, AdamW(model.parameters(), 3e-3), twin, DenseMasterAdamW(twin.parameters(), 3e-3)


def fifty_steps(model, optimizer, dtype):
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(50):
        x = torch.randn(32, 48, generator=generator)
        optimizer.zero_grad()
        loss = (model(x.to(dtype)).float() - x[:, :4].sin()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("whole_in_bf16", [False, True])
@pytest.mark.parametrize("mode", ["resident", "jit"])
def test_fifty_steps_equal_a_masked_dense_fp32_master_bit_by_bit(mode, whole_in_bf16):
    model, optimizer, twin, dense_optimizer = pair(mode, whole_in_bf16)
    dtype = torch.bfloat16 if whole_in_bf16 else torch.float32
    assert fifty_steps(model, optimizer, dtype) == fifty_steps(twin, dense_optimizer, dtype)
    masters = dict(zip(dense_optimizer.params, dense_optimizer.masters, strict=True))
    for index in (0, 2, 4):
        expected = masters[twin[index].weight].detach()[twin[index].mask]
        assert torch.equal(optimizer.master_of(model[index].values), expected)
        kept = torch.where(twin[index].mask, twin[index].weight, 0)
        assert torch.equal(model[index].dense_weight(), kept)
        assert torch.equal(model[index].bias, twin[index].bias)


def test_fifty_steps_on_kernels_equal_it_to_rounding():
    model, optimizer, twin, dense_optimizer = pair("kernel", False)
    with gossamer.strict():
        losses = fifty_steps(model, optimizer, torch.float32)
    expected = fifty_steps(twin, dense_optimizer, torch.float32)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-3, atol=0)


@pytest.mark.parametrize("mode", ["jit", "resident", "kernel"])
def test_bf16_values_with_fp32_inputs_equal_float64(mode):
    torch.manual_seed(0)
    dense = nn.Linear(40, 24)
    layer = gossamer.nn.Linear.from_dense(dense, torch.rand(24, 40) < 0.3, mode=mode)
    layer.values.data = layer.values.data.to(torch.bfloat16)
    x = torch.randn(3, 7, 40, requires_grad=True)
    y = layer(x)
    grad = torch.randn(3, 7, 24)
    y.backward(grad)
    weight = layer.dense_weight().double()
    expected = x.double() @ weight.T + layer.bias.double()
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad.double(), grad.double() @ weight, rtol=1e-5, atol=1e-5)
    dense_grad = torch.einsum("abr,abk->rk", grad.double(), x.detach().double())[layer.mask()]
    assert layer.values.grad.dtype is torch.bfloat16
    torch.testing.assert_close(layer.values.grad.double(), dense_grad, rtol=2**-8, atol=1e-6)


def test_second_derivatives_with_bf16_values():
    torch.manual_seed(0)
    layer = gossamer.nn.Linear.from_dense(nn.Linear(6, 5), torch.rand(5, 6) < 0.5)
    layer.values.data = layer.values.data.to(torch.bfloat16)
    x = torch.randn(4, 6, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    dx.square().sum().backward()
    assert layer.values.grad.dtype is torch.bfloat16
    weight = layer.dense_weight().float().requires_grad_()
    (dx2,) = torch.autograd.grad((x @ weight.T + layer.bias).square().sum(), x, create_graph=True)
    dx2.square().sum().backward()
    torch.testing.assert_close(
        layer.values.grad.float(), weight.grad[layer.mask()], rtol=2**-7, atol=1e-4
    )


SETTINGS = [{"moments": "fp32"}, {"moments": "8bit"}, {"moments": "8bit", "master": "split8"}]


def trained_mlp(settings):
    torch.manual_seed(0)
    split = cluster_problem(torch.Generator().manual_seed(0), num_train=1024, num_test=512)
    model = MLP((64, 256, 128, 8))
    gossamer.sparsify(model, sparsity=0.7)
    gossamer.compact(model)
    optimizer = AdamW(model.parameters(), 2e-3, **settings)
    optimizer.split_masters(layer.values for layer in model.layers)
    for epoch in range(10):
        order = torch.randperm(1024, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(64):
            optimizer.zero_grad()
            cross_entropy(model(split.x_train[rows]), split.y_train[rows]).backward()
            optimizer.step()
    with torch.inference_mode():
        loss = cross_entropy(model(split.x_train), split.y_train)
        return loss.item(), accuracy(model(split.x_test), split.y_test)


def test_eight_bit_state_trains_nearly_as_well():
    exact, *eight_bit = [trained_mlp(settings) for settings in SETTINGS]
    assert exact[1] > 0.7
    for loss, quality in eight_bit:
        assert loss < exact[0] + 0.05
        assert quality > exact[1] - 0.02


def test_a_gpt_trains_in_kernel_mode_with_split_masters():
    torch.manual_seed(0)
    model = GPT(16, width=32, num_heads=2, num_layers=2, context=16, recompute=True)
    gossamer.sparsify(model, sparsity=0.5)
    gossamer.compact(model, mode="kernel")
    optimizer = AdamW(model.parameters(), 1e-2)
    optimizer.split_masters(m.values for m in model.modules() if isinstance(m, gossamer.nn.Linear))
    generator = torch.Generator().manual_seed(0)
    losses = []
    with gossamer.strict():
        for _ in range(30):
            start = torch.randint(16, (8, 1), generator=generator)
            ids = (start + torch.arange(16)) % 16
            optimizer.zero_grad()
            loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.2 < 2 < losses[0]
