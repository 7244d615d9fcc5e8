# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer.nn as gnn
from gossamer.errors import InputError, PatternError


def trained(optimizer_class=torch.optim.AdamW, mode="jit", density=0.5, steps=3, **options):
    torch.manual_seed(0)
    mask = torch.rand(6, 11) < density
    layer = gnn.Linear.from_dense(nn.Linear(11, 6), mask, mode=mode)
    optimizer = optimizer_class(layer.parameters(), lr=0.01, **options)
    for _ in range(steps):
        layer(torch.randn(5, 11)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return layer, optimizer, mask


def spread(vector, mask):
    return torch.zeros(mask.shape).masked_scatter(mask, vector.detach())


@pytest.mark.parametrize("mode", ["jit", "resident", "kernel"])
@pytest.mark.parametrize("new_density", [0.0, 0.3, 0.5, 1.0])
def test_survivors_keep_value_and_state_bitwise(mode, new_density):
    layer, optimizer, old = trained(mode=mode)
    new = torch.rand(6, 11) < new_density
    parameter = layer.values
    before = {"values": spread(layer.values, old)}
    for key in ("exp_avg", "exp_avg_sq"):
        before[key] = spread(optimizer.state[parameter][key], old)
    step = optimizer.state[parameter]["step"].clone()
    layer(torch.randn(2, 11)).sum().backward()
    layer.remap(new, optimizer)
    assert layer.values is parameter
    assert layer.values.grad is None
    assert torch.equal(layer.mask(), new)
    assert optimizer.param_groups[0]["params"][0] is parameter
    after = {"values": layer.values} | optimizer.state[parameter]
    for key, old_dense in before.items():
        new_dense = spread(after[key], new)
        assert torch.equal(new_dense[old & new], old_dense[old & new])
        assert not new_dense[~old].any()
    assert torch.equal(optimizer.state[parameter]["step"], step)
    x = torch.randn(3, 11)
    torch.testing.assert_close(layer(x), layer.to_dense()(x))
    layer(x).sum().backward()
    optimizer.step()


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_there_and_back_keeps_the_common_weights(first, second, seed):
    layer, optimizer, old = trained(density=first, steps=1)
    generator = torch.Generator().manual_seed(seed)
    new = torch.rand(6, 11, generator=generator) < second
    original = spread(layer.values, old)
    layer.remap(new, optimizer)
    layer.remap(old, optimizer)
    back = spread(layer.values, old)
    assert torch.equal(back, original * new)


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True}),
    ],
)
def test_training_goes_on_after_remap(optimizer_class, options):
    layer, optimizer, old = trained(optimizer_class, **options)
    layer.remap(~old, optimizer)
    before = layer.values.detach().clone()
    layer(torch.randn(5, 11)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(layer.values, before)


def test_state_that_cannot_be_mapped_changes_nothing():
    layer, optimizer, old = trained()
    optimizer.state[layer.values]["row_sums"] = torch.ones(6)
    values = layer.values.detach().clone()
    with pytest.raises(InputError, match=r"'row_sums' of shape \[6\]"):
        layer.remap(~old, optimizer)
    assert torch.equal(layer.values, values)
    assert torch.equal(layer.mask(), old)


def test_optimizer_without_the_layer_is_left_alone():
    layer, _, old = trained()
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
    layer.remap(~old, other)
    assert torch.equal(layer.mask(), ~old)
    assert not other.state


def test_bad_masks_are_refused():
    layer, _, _ = trained()
    with pytest.raises(PatternError, match="bool mask"):
        layer.remap(torch.ones(6, 11))
    with pytest.raises(InputError, match=r"\[6, 11\]"):
        layer.remap(torch.ones(11, 6, dtype=torch.bool))


def test_layers_that_share_values_move_together():
    layer, _, old = trained()
    twin = gnn.Linear(layer.values, layer.mask_bits, 11)
    layer.remap(~old)
    x = torch.randn(2, 11)
    torch.testing.assert_close(twin(x) + layer.bias, layer(x))
    assert torch.equal(twin.mask(), ~old)
    pair = copy.deepcopy(nn.ModuleList([layer, twin]))
    assert pair[0].values is pair[1].values
    assert pair[0].mask_bits is pair[1].mask_bits
