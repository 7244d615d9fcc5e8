# SPDX-License-Identifier: Apache-2.0
"""Fake int8 computes what the int8 kernels compute, lets gradients through and keeps zeros."""

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d

import gossamer
from gossamer.errors import InputError
from gossamer.formats import SparseMatrix
from gossamer.nn.rounding import (
    best_scale,
    rounded_activations,
    rounded_by_scale,
    rounded_values,
    rounded_weight,
)
from gossamer.ops.linear import pack_int8
from gossamer.training.recovery import fake_int8
from gossamer.training.recovery.fake_int8 import (
    FakeInt8,
    engine_bits,
)


def pruned(*sizes, sparsity=0.7, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model = nn.Sequential(*layers).eval()
    gossamer.sparsify(model, sparsity=sparsity, ignore=None)
    return model


def by_engine(layer, x, bits, scale=None):
    """The layer on the native kernel."""
    mask = layer.mask()
    weight = layer.to_dense().weight.detach()
    packed = pack_int8(SparseMatrix.from_dense(weight, mask), "panel", bits, scale)
    return packed(x, layer.bias.detach())


def close_to(y, wanted):
    # Both are sums of the same integers times the same scales, in another order of roundings.
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["masked", "jit", "resident", "kernel"])
@pytest.mark.parametrize("bits", [7, 8])
def test_a_layer_gives_what_the_kernel_gives(form, bits):
    model = pruned(50, 33)
    x = torch.randn(21, 50) * torch.logspace(-3, 3, 21).unsqueeze(1)
    x[3] = 0.0
    wanted = by_engine(model[0], x, bits)
    if form != "masked":
        gossamer.compact(model, mode=form)
    with fake_int8(model, bits=bits), torch.no_grad():
        y = model(x)
    size = (wanted.abs().amax(dim=1, keepdim=True)).clamp(min=1e-6)
    close_to(y / size, wanted / size)


@pytest.mark.parametrize("bits", [7, 8])
def test_one_scale_for_all_tokens_gives_what_the_kernel_gives(bits):
    model = pruned(40, 24)
    x = torch.randn(60, 40)
    calls = [lambda net: net(x)]
    with fake_int8(model, "calibrated", bits=bits, calibrate=calls) as quantised, torch.no_grad():
        scale = quantised.scales()["0"]
        wanted = by_engine(quantised.layers["0"].layer, x, bits, scale)
        close_to(model(x), wanted)


@given(
    counts=st.lists(st.integers(0, 7), min_size=0, max_size=6),
    seed=st.integers(0, 1000),
    zero=st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_values_lie_on_the_grid_of_their_row(counts, seed, zero):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(counts), generator=generator) * (0 if zero else 3)
    found = rounded_values(values, torch.tensor(counts, dtype=torch.int64))
    start = 0
    for count in counts:
        row = values[start : start + count].double()
        top = float(row.abs().max()) if count else 0.0
        wanted = (row * (127 / top)).round() * (top / 127) if top else row
        torch.testing.assert_close(
            found[start : start + count].double(), wanted, rtol=1e-6, atol=1e-9
        )
        start += count


def test_a_dense_weight_is_rounded_like_its_kept_values():
    torch.manual_seed(1)
    weight = torch.randn(9, 14)
    mask = torch.rand(9, 14) < 0.4
    mask[2] = False
    weight = weight * mask
    values = rounded_values(weight[mask], mask.sum(dim=1))
    dense = rounded_weight(weight)
    assert torch.equal(dense[mask], values)
    assert bool((dense[~mask] == 0).all())
    assert rounded_weight(torch.zeros(3, 0)).shape == (3, 0)


def test_tokens_are_rounded_apart_and_tiny_ones_are_zero():
    x = torch.tensor([[1.0, 0.5, -1.0], [100.0, 50.0, -0.1], [0.0, 0.0, 0.0], [1e-37] * 3])
    found = rounded_activations(x, 8)
    torch.testing.assert_close(found[0], torch.tensor([1.0, 64 / 127, -1.0]))
    torch.testing.assert_close(found[1], torch.tensor([100.0, 6400 / 127, 0.0]))
    assert not found[2:].any()
    assert rounded_activations(torch.zeros(0, 3), 8).shape == (0, 3)


def test_gradients_pass_straight_through():
    x = torch.randn(5, 6, requires_grad=True)
    values = torch.randn(12, requires_grad=True)
    weights = torch.randn(5, 6)
    (rounded_activations(x, 7) * weights).sum().backward()
    torch.testing.assert_close(x.grad, weights)
    rounded_values(values, torch.tensor([5, 0, 7])).sum().backward()
    torch.testing.assert_close(values.grad, torch.ones(12))


def test_a_learned_scale_gets_the_gradient_of_lsq():
    x = torch.tensor([[0.3, -0.26, 90.0, -90.0]], requires_grad=True)
    scale = torch.tensor(0.1, requires_grad=True)
    grad = torch.tensor([[1.0, 2.0, 3.0, 5.0]])
    rounded_by_scale(x, scale, 8).backward(grad)
    ratio = x.detach().double() / 0.1
    inside = ratio.abs() <= 127
    by_entry = torch.where(inside, ratio.round() - ratio, ratio.clamp(-127, 127))
    wanted = float((grad.double() * by_entry).sum()) / math.sqrt(4 * 127)
    assert float(scale.grad) == pytest.approx(wanted, rel=1e-4)
    torch.testing.assert_close(x.grad, grad * inside)


def test_the_best_scale_beats_the_largest_value_where_there_are_outliers():
    torch.manual_seed(0)
    sample = torch.cat([torch.randn(20_000).abs(), torch.tensor([40.0])])

    def error(scale):
        return float(((sample / scale).clamp(max=127).round() * scale - sample).square().mean())

    chosen = best_scale(sample, 8)
    assert error(chosen) < error(40.0 / 127)
    assert best_scale(torch.zeros(3), 8) == 1.0
    assert best_scale(torch.zeros(0), 8) == 1.0


@pytest.mark.parametrize("compacted", [False, True])
def test_convolutions_get_one_scale_per_image(compacted):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1)).eval()
    gossamer.sparsify(model, sparsity=0.5)
    weight = model[0].to_dense().weight.detach()
    if compacted:
        gossamer.compact(model)
    x = torch.randn(2, 4, 5, 5) * torch.tensor([1.0, 30.0]).view(2, 1, 1, 1)
    with fake_int8(model, bits=8), torch.no_grad():
        y = model(x)
    top = x.double().abs().amax(dim=(1, 2, 3), keepdim=True)
    row = weight.double().flatten(1).abs().amax(dim=1).view(-1, 1, 1, 1)
    q_x, q_w = (x.double() * 127 / top).round(), (weight.double() * 127 / row).round()
    wanted = conv2d(q_x * top / 127, q_w * row / 127, model[0].bias.detach().double(), padding=1)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scales", ["token", "calibrated", "learned"])
def test_training_in_fake_int8_keeps_masks_and_lowers_the_loss(scales):
    model = pruned(16, 32, 8)
    gossamer.compact(model)
    x = torch.randn(64, 16)
    wanted = torch.randn(64, 8)
    digests = [layer.mask_digest() for layer in model]
    with fake_int8(model, scales, calibrate=[lambda net: net(x)]) as quantised:
        parameters = list(model.parameters())
        assert len(parameters) == 4 + 2 * (scales == "learned")
        optimizer = torch.optim.Adam(parameters, lr=0.01)
        before = quantised.scales()
        losses = []
        for _ in range(30):
            loss = (model(x) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        after = quantised.scales()
    assert losses[-1] < 0.9 * losses[0]
    assert (before != after) == (scales == "learned")
    assert len(after) == (0 if scales == "token" else 2)
    assert [layer.mask_digest() for layer in model] == digests
    assert not any(isinstance(module, FakeInt8) for module in model.modules())


def test_what_was_attached_is_detached_bit_by_bit():
    model = pruned(8, 8, 8)
    whole = copy.deepcopy(model)
    layers = list(model)
    with fake_int8(model) as quantised:
        assert [wrapper.layer for wrapper in quantised.layers.values()] == layers
        assert list(model) == list(quantised.layers.values())
    assert list(model) == layers
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_the_compiled_model_gives_what_was_trained():
    model = pruned(64, 48, 32)
    x = torch.randn(40, 64)
    with fake_int8(model), torch.no_grad():
        fake = model(x)
    fast = gossamer.compile(model, tokens=40, precision="int8", kernel="int8_panel")
    torch.testing.assert_close(fast(x), fake, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("tensor",), "scales must be one of token"),
        (("token", 4), "bits must be 7 or 8, got 4"),
        (("learned",), "no calibration batch reached 0"),
    ],
)
def test_bad_input_is_named(settings, message):
    model = pruned(8, 8)
    scales, bits = (*settings, None)[:2]
    with pytest.raises(InputError, match=message), fake_int8(model, scales, bits=bits):
        pass
    assert not any(isinstance(module, FakeInt8) for module in model.modules())


def test_models_that_cannot_be_quantised_are_named():
    with pytest.raises(InputError, match="no pruned layer"), fake_int8(nn.Sequential(nn.ReLU())):
        pass
    model = pruned(8, 8)
    again = pytest.raises(InputError, match="0 is quantised already")
    with fake_int8(model), again, fake_int8(model):
        pass
    assert not any(isinstance(module, FakeInt8) for module in model.modules())
    assert engine_bits() in (7, 8)
