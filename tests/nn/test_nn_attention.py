# SPDX-License-Identifier: Apache-2.0
"""torch's attention and encoder read `.weight` instead of calling layers; results must not care."""

import copy

import pytest
import torch
from torch import nn

import gossamer.nn as gnn
from gossamer.nn.layers import MaskedOutProj
from gossamer.nn.surgery import disable_fast_paths, replace_module
from gossamer.patterns import Unstructured

ANY = Unstructured()
WIDTH, HEADS = 8, 2


def mask_of(layer, density=0.5):
    return torch.rand(layer.out_features, layer.in_features) < density


def mask_out_proj(attention, mask):
    layer = MaskedOutProj.from_dense(attention.out_proj, mask, ANY)
    replace_module(attention, attention.out_proj, layer)
    return layer


def oracle_step(model, masks, optimizer):
    """Masked training by hand: zero gradients before, weights after the step."""
    for name, mask in masks.items():
        model.get_submodule(name).weight.grad.mul_(mask)
    optimizer.step()
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_submodule(name).weight.mul_(mask)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_reads_the_masked_weight(train, need_weights):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).train(train)
    dense = copy.deepcopy(attention)
    mask = mask_of(attention.out_proj)
    layer = mask_out_proj(attention, mask)
    with torch.no_grad():
        dense.out_proj.weight.mul_(mask)
        layer.weight_parameter().add_(1.0 * ~mask)
    x = torch.randn(3, 5, WIDTH)
    with torch.set_grad_enabled(train):
        y = attention(x, x, x, need_weights=need_weights)[0]
        z = dense(x, x, x, need_weights=need_weights)[0]
    assert torch.equal(y, z)


def test_out_proj_weight_is_masked_and_the_parameter_keeps_its_name():
    attention = nn.MultiheadAttention(WIDTH, HEADS)
    parameter = attention.out_proj.weight
    mask = mask_of(attention.out_proj)
    layer = mask_out_proj(attention, mask)
    assert dict(attention.named_parameters())["out_proj.weight"] is parameter
    assert layer.weight_parameter() is parameter
    with torch.no_grad():
        parameter.fill_(1.0)
    assert torch.equal(attention.out_proj.weight, mask.float())
    assert torch.equal(attention.state_dict()["out_proj.weight"], mask.float())
    twin = copy.deepcopy(attention)
    assert torch.equal(twin.out_proj.weight, mask.float())
    twin.load_state_dict(attention.state_dict(), strict=True)
    assert attention.double().out_proj.weight.dtype is torch.float64
    assert type(layer.to_dense()) is nn.Linear


def test_attention_gradients_at_pruned_positions_are_zero_after_deepcopy():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, HEADS)
    mask = mask_of(attention.out_proj)
    mask_out_proj(attention, mask)
    for model in (attention, copy.deepcopy(attention)):
        x = torch.randn(5, 3, WIDTH)
        model(x, x, x)[0].square().sum().backward()
        grad = model.out_proj.weight_parameter().grad
        assert not grad[~mask].any()
        assert grad[mask].all()


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_masked_attention_compiles(backend):
    torch._dynamo.reset()
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    mask_out_proj(attention, mask_of(attention.out_proj))
    x = torch.randn(2, 3, WIDTH)
    compiled = torch.compile(attention, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x, x, x)[0], attention(x, x, x)[0])


def encoder(seed=0):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def masked_encoder(model):
    masks = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            masks[name] = mask_of(module)
            kind = MaskedOutProj if name.endswith("out_proj") else gnn.MaskedLinear
            replace_module(model, module, kind.from_dense(module, masks[name], ANY))
    return masks


def test_stock_encoder_is_left_alone():
    model = encoder()
    assert disable_fast_paths(model) == []
    assert model.use_nested_tensor
    assert all(layer.activation_relu_or_gelu for layer in model.layers)


def test_only_layers_with_replaced_linears_lose_the_fast_path():
    model = encoder()
    first = model.layers[0]
    mask = torch.ones(16, WIDTH, dtype=torch.bool)
    compact = gnn.Linear.from_dense(first.linear1, mask)
    replace_module(model, first.linear1, compact)
    assert disable_fast_paths(model) == ["layers.0"]
    assert not model.use_nested_tensor
    assert not first.activation_relu_or_gelu
    assert model.layers[1].activation_relu_or_gelu


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("optimizer_class", ["sgd", "adamw"])
def test_encoder_trains_and_evaluates_like_the_masked_oracle(padded, optimizer_class):
    model = encoder().double()
    oracle = copy.deepcopy(model)
    oracle.use_nested_tensor = False

    def optimizer_of(model):
        if optimizer_class == "sgd":
            return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.1)
        return torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.1)

    optimizers = [optimizer_of(model), optimizer_of(oracle)]
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[:, 4] = padded
    options = {"src_key_padding_mask": padding} if padded else {}

    def loss_of(model):
        return (model(x, **options) - x.flip(0)).square().mean()

    for _ in range(3):  # momentum builds up before anything is pruned
        for trained, optimizer in zip((model, oracle), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(trained).backward()
            optimizer.step()
    masks = masked_encoder(model)
    assert len(disable_fast_paths(model)) == 2
    with torch.no_grad():
        for name, mask in masks.items():
            oracle.get_submodule(name).weight.mul_(mask)
    for _ in range(4):
        for trained, optimizer in zip((model, oracle), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(trained).backward()
        optimizers[0].step()
        oracle_step(oracle, masks, optimizers[1])
        torch.testing.assert_close(loss_of(model), loss_of(oracle), rtol=1e-9, atol=1e-9)
    assert any(
        model.get_submodule(name).weight_parameter()[~mask].any() for name, mask in masks.items()
    )
    model.eval()
    oracle.eval()
    with torch.no_grad():
        y, z = model(x, **options), oracle(x, **options)
    keep = ~padding if padded else torch.ones_like(padding)
    torch.testing.assert_close(y[keep], z[keep], rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        copied = copy.deepcopy(model)(x, **options)
    assert torch.equal(copied, y)


def test_the_fast_path_would_have_read_past_the_mask():
    """The danger is real in this torch: without the switch, results are those of no mask."""
    model = encoder().eval()
    masks = masked_encoder(model)
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_submodule(name).weight_parameter().add_(1.0 * ~mask)
        x = torch.randn(3, 5, WIDTH)
        wrong = model(x)
        disable_fast_paths(model)
        right = model(x)
    assert not torch.allclose(wrong, right, atol=1e-3)
