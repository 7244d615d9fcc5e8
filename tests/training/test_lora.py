# SPDX-License-Identifier: Apache-2.0
"""Adapters on compact, masked and ordinary layers; ours and peft's."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn import Linear, MaskedLinear
from gossamer.training.recovery import add_adapters, merge_adapters
from gossamer.training.recovery.lora import LoRALinear, register_with_peft
from gossamer.zoo import TinyEncoder


def model(form):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))
    net = net.double()
    if form != "dense":
        gossamer.sparsify(net, sparsity=0.6)
    if form == "compact":
        gossamer.compact(net)
    return net


def train(net, steps=30):
    x = torch.randn(64, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = x[:, :5] @ torch.eye(5, dtype=torch.float64) - x[:, 5:10]
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return x, losses


@pytest.mark.parametrize("form", ["dense", "masked", "compact"])
def test_only_adapters_train_and_the_loss_falls(form):
    net = model(form)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    x = torch.randn(3, 12, dtype=torch.float64)
    expected = net(x)
    assert add_adapters(net.double(), rank=4) == ["0", "2"]
    net.double()
    assert torch.equal(net(x), expected)
    _, losses = train(net)
    assert losses[-1] < 0.9 * losses[0]
    trained = {name for name, param in net.named_parameters() if param.requires_grad}
    assert trained == {f"{i}.{part}" for i in (0, 2) for part in ("down_rK", "up_Rr")}
    after = net.state_dict()
    for name, tensor in before.items():
        layer, _, rest = name.partition(".")
        assert torch.equal(after[f"{layer}.base.{rest}"], tensor)


@pytest.mark.parametrize("form", ["dense", "masked", "compact"])
def test_forward_and_gradients_equal_the_sum_of_two_weights(form):
    net = model(form)
    add_adapters(net, rank=3, alpha=6.0, targets=["0"])
    net.double()
    layer = net[0]
    nn.init.normal_(layer.up_Rr)
    x = torch.randn(4, 12, dtype=torch.float64)
    base = layer.base.weight if form == "dense" else layer.base.to_dense().weight
    up, down = (p.detach().clone().requires_grad_() for p in (layer.up_Rr, layer.down_rK))
    expected = x @ (base + 2 * up @ down).t() + layer.base.bias
    y = layer(x)
    assert torch.allclose(y, expected, rtol=1e-12, atol=1e-12)
    y.square().sum().backward()
    expected.square().sum().backward()
    assert torch.allclose(layer.up_Rr.grad, up.grad, rtol=1e-10)
    assert torch.allclose(layer.down_rK.grad, down.grad, rtol=1e-10)


@pytest.mark.parametrize("form", ["dense", "masked", "compact"])
def test_merging_keeps_zeros_and_says_what_is_lost(form):
    net = model(form)
    masks = [m.mask() for m in net if isinstance(m, MaskedLinear | Linear)]
    add_adapters(net, rank=4)
    net.double()
    x, _ = train(net)
    changes = [m.change() for m in net if isinstance(m, LoRALinear)]
    whole = net(x)
    lost = merge_adapters(net)
    assert not any(isinstance(m, LoRALinear) for m in net.modules())
    assert all(param.requires_grad for param in net.parameters())
    if form == "dense":
        assert torch.allclose(net(x), whole, rtol=1e-10, atol=1e-10)
        assert lost == {"0": 0, "2": 0}
        return
    after = [m.mask() for m in net if isinstance(m, MaskedLinear | Linear)]
    assert all(map(torch.equal, masks, after))
    for value, mask, change in zip(lost.values(), masks, changes, strict=True):
        assert value == pytest.approx(float(change[~mask].norm() / change.norm()), rel=1e-6)


def test_adapters_that_cannot_be_had():
    with pytest.raises(InputError, match="names no Linear"):
        add_adapters(model("compact"), targets=["nothing*"])
    with pytest.raises(InputError, match="rank must be at least 1"):
        add_adapters(model("compact"), rank=0)
    with pytest.raises(InputError, match="none to merge"):
        merge_adapters(model("compact"))


def test_heads_are_left_out_unless_named():
    net = TinyEncoder(20, 3, width=16, num_heads=2, num_layers=1, ffn_width=32)
    names = add_adapters(net, rank=2)
    assert "head" not in names
    assert len(names) == 6


def test_adapters_of_peft_on_compact_layers():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    net = TinyEncoder(20, 3, width=16, num_heads=2, num_layers=1, ffn_width=32)
    gossamer.sparsify(net, sparsity=0.8)
    gossamer.compact(net)
    ids = torch.randint(20, (4, 6))
    expected = net(ids)
    config = peft.LoraConfig(r=2, target_modules=["up", "down"])
    wrapped = peft.get_peft_model(net, register_with_peft(config))
    assert torch.allclose(wrapped(ids), expected)
    trained = {name for name, param in wrapped.named_parameters() if param.requires_grad}
    assert len(trained) == 4
    optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], 1e-1)
    values = net.layers[0].up.base_layer.values.clone()
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(ids).square().sum().backward()
        optimizer.step()
    assert not torch.allclose(wrapped(ids), expected)
    assert torch.equal(net.layers[0].up.base_layer.values, values)
