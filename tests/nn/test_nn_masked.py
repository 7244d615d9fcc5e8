# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from torch import nn

import gossamer
import gossamer.nn as gnn
from gossamer.errors import InputError, PatternError
from gossamer.nn.layers import MaskedConv2d
from gossamer.nn.surgery import replace_module
from gossamer.patterns import Unstructured

ANY = Unstructured()


def linear(density=0.4, out=6, inp=11, bias=True):
    torch.manual_seed(0)
    dense = nn.Linear(inp, out, bias)
    mask = torch.rand(out, inp) < density
    return gnn.MaskedLinear.from_dense(dense, mask, ANY), dense, mask


def conv(density=0.4, **options):
    torch.manual_seed(0)
    dense = nn.Conv2d(4, 6, 3, **options)
    mask = torch.rand(6, dense.weight[0].numel()) < density
    return MaskedConv2d.from_dense(dense, mask, ANY), dense, mask


def drift(layer):
    """What momentum and weight decay do: move every entry of the Parameter, pruned or not."""
    with torch.no_grad():
        layer.weight_parameter().add_(1.0)


@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("lead", [(), (0,), (3,), (2, 3)])
def test_linear_equals_its_dense_twin_even_after_drift(density, lead):
    layer, _, mask = linear(density)
    drift(layer)
    x = torch.randn(*lead, 11)
    twin = layer.to_dense()
    assert type(twin) is nn.Linear
    assert torch.equal(twin.weight != 0, mask)
    assert torch.equal(layer(x), twin(x))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"groups": 2, "stride": 2, "padding": 1, "dilation": 2},
        {"padding": "same", "padding_mode": "circular"},
    ],
)
def test_conv_equals_its_dense_twin_even_after_drift(options):
    layer, dense, mask = conv(**options)
    assert layer.mask().shape == (6, dense.weight[0].numel())
    drift(layer)
    x = torch.randn(2, 4, 9, 9)
    twin = layer.to_dense()
    assert type(twin) is nn.Conv2d
    assert torch.equal(twin.weight.flatten(1) != 0, mask)
    assert torch.equal(layer(x), twin(x))


@pytest.mark.parametrize("make", [linear, conv])
def test_parameters_are_the_same_objects(make):
    layer, dense, mask = make()
    assert layer.weight is dense.weight
    assert layer.bias is dense.bias
    assert not layer.weight.flatten(1)[~mask].any()


@pytest.mark.parametrize("make", [linear, conv])
def test_gradients_of_pruned_weights_are_zero(make):
    layer, _, mask = make()
    x = torch.randn(2, 11) if make is linear else torch.randn(2, 4, 5, 5)
    layer(x).square().sum().backward()
    grad = layer.weight.grad.flatten(1)
    assert not grad[~mask].any()
    assert grad[mask].any()


def test_nan_in_a_pruned_entry_does_not_leak():
    layer, _, mask = linear()
    with torch.no_grad():
        layer.weight[~mask] = float("nan")
    assert layer(torch.randn(3, 11)).isfinite().all()
    layer(torch.randn(3, 11)).sum().backward()
    assert layer.weight.grad.isfinite().all()
    assert layer.state_dict()["weight"].isfinite().all()


@pytest.mark.parametrize("make", [linear, conv])
def test_state_dict_holds_exact_zeros_and_round_trips(make):
    layer, _, mask = make(density=0.4)
    drift(layer)
    state = layer.state_dict()
    assert set(state) == {"weight", "bias", "mask_bits"}
    assert not state["weight"].flatten(1)[~mask].any()
    other, _, _ = make(density=0.9)
    other.load_state_dict(copy.deepcopy(state), strict=True)
    assert torch.equal(other.mask(), mask)
    assert torch.equal(other.masked_weight(), layer.masked_weight())


def test_load_with_assign_follows():
    layer, _, mask = linear(0.4)
    other, _, _ = linear(0.9)
    other.load_state_dict(copy.deepcopy(layer.state_dict()), assign=True)
    assert torch.equal(other.mask(), mask)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["0.mask_bits"].bitwise_or_(0x80), r"0\.mask_bits: padding"),
        (lambda s: s.update({"0.mask_bits": s["0.mask_bits"].int()}), r"0\.mask_bits.*uint8"),
        (lambda s: s.update({"0.mask_bits": s["0.mask_bits"][:2]}), r"0\.mask_bits.*\[2, 2\]"),
    ],
)
def test_bad_masks_in_state_are_refused(change, words):
    model = nn.Sequential(linear()[0])
    state = {key: value.clone() for key, value in model.state_dict().items()}
    mask = model[0].mask()
    change(state)
    with pytest.raises(RuntimeError, match=words):
        model.load_state_dict(state)
    assert torch.equal(model[0].mask(), mask)


def test_set_mask_starts_grown_weights_at_zero():
    layer, _, mask = linear()
    kept = layer.weight.detach().clone()
    drift(layer)
    layer.set_mask(~mask)
    assert not layer.masked_weight().any()
    layer.set_mask(mask)
    assert not layer.masked_weight().any()
    assert layer.mask_digest() == linear()[0].mask_digest()
    assert kept.any()


def test_set_mask_refuses_bad_masks():
    layer, _, mask = linear()
    with pytest.raises(PatternError, match="bool"):
        layer.set_mask(mask.float())
    with pytest.raises(InputError, match=r"set_mask.*\[6, 11\].*\[11, 6\]"):
        layer.set_mask(mask.T)
    assert torch.equal(layer.mask(), mask)


def test_mask_is_a_copy():
    layer, _, mask = linear()
    layer.mask().fill_(True)
    assert torch.equal(layer.mask(), mask)


def test_from_dense_refuses_before_it_changes_anything():
    dense = nn.Linear(4, 4)
    before = dense.weight.detach().clone()
    with pytest.raises(InputError, match="from_dense"):
        gnn.MaskedLinear.from_dense(dense, torch.zeros(4, 3, dtype=torch.bool), ANY)
    assert torch.equal(dense.weight, before)
    assert set(dense.state_dict()) == {"weight", "bias"}


def test_hooks_settings_and_mode_are_taken_over():
    dense = nn.Linear(4, 4).eval()
    dense.nickname = "query"
    calls = []
    handle = dense.register_forward_hook(lambda *_: calls.append(1))
    layer = gnn.MaskedLinear.from_dense(dense, torch.ones(4, 4, dtype=torch.bool), ANY)
    assert layer.nickname == "query"
    assert not layer.training
    layer(torch.randn(1, 4))
    handle.remove()
    layer(torch.randn(1, 4))
    assert calls == [1]


@pytest.mark.parametrize("make", [linear, conv])
def test_deepcopy_to_dtype_and_repr(make):
    layer, _, mask = make()
    twin = copy.deepcopy(layer).to(torch.float64)
    assert twin.weight.dtype is torch.float64
    assert twin._mask.dtype is torch.bool
    twin.set_mask(~mask)
    assert torch.equal(layer.mask(), mask)
    assert "pattern=unstructured, density=0." in repr(layer)


@pytest.mark.parametrize("make", [linear, conv])
def test_compile_and_export(make):
    torch._dynamo.reset()
    layer, _, _ = make()
    x = torch.randn(2, 11) if make is linear else torch.randn(2, 4, 5, 5)
    drift(layer)
    expected = layer(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)
    exported = torch.export.export(nn.Sequential(layer), (x,))
    torch.testing.assert_close(exported.module()(x), expected)
    # A moved mask changes buffer contents only, so the compiled layer follows.
    layer.set_mask(torch.zeros_like(layer.mask()))
    torch.testing.assert_close(compiled(x), layer(x))


def test_gradcheck():
    layer, _, _ = linear()
    layer.double()
    x = torch.randn(3, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, layer.weight, layer.bias))


def test_replace_module_keeps_shared_modules_shared():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.ReLU())})
    masked = gnn.MaskedLinear.from_dense(shared, torch.ones(4, 4, dtype=torch.bool), ANY)
    replace_module(model, shared, masked)
    assert model["a"] is masked
    assert model["b"][0] is masked
    with pytest.raises(InputError, match="Wrap it"):
        replace_module(masked, masked, shared)


@pytest.mark.parametrize(
    "gone", [lambda layer: setattr(layer, "weight", None), lambda layer: delattr(layer, "weight")]
)
@pytest.mark.parametrize(
    "use", [gossamer.compact, gossamer.compile, lambda model: gossamer.save(model, "never")]
)
def test_a_weight_that_was_taken_away_is_named(gone, use):
    model = nn.Sequential(linear()[0])
    gone(model[0])
    with pytest.raises(InputError, match="MaskedLinear: its weight is gone"):
        use(model)
