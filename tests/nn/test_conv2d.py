"""The compact Conv2d: the same function, gradients and steps as the masked one."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer
from gossamer.errors import DenseFallback, InputError, PatternError, WeightIsCompact
from gossamer.nn.layers import Conv2d, MaskedConv2d
from gossamer.ops import strict
from gossamer.ops.conv import ConvSettings
from gossamer.ops.training import linear as ops
from gossamer.patterns import Unstructured, parse_pattern

OPTIONS = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1},
    "grouped": {"groups": 2, "padding": (0, 2)},
    "dilated": {"dilation": 2, "padding": "same"},
    "reflecting": {"padding": 1, "padding_mode": "reflect"},
    "even kernel": {"kernel_size": (2, 3), "padding": "same", "padding_mode": "circular"},
    "without bias": {"bias": False},
}


def make(density=0.4, mode="jit", dtype=torch.float64, **options):
    """A compact layer and the dense one with zeros that it must equal."""
    torch.manual_seed(0)
    options = {"kernel_size": 3, **options}
    dense = nn.Conv2d(4, 6, dtype=dtype, **options)
    mask = torch.rand(6, dense.weight[0].numel()) < density
    with torch.no_grad():
        dense.weight.mul_(mask.view(dense.weight.shape))
    return Conv2d.from_dense(dense, mask, mode=mode), dense, mask


@pytest.mark.parametrize("mode", ["jit", "resident"])
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_dense_layer_in_values_and_gradients(name, mode):
    layer, dense, mask = make(mode=mode, **OPTIONS[name])
    for shape in ((2, 4, 9, 8), (4, 7, 9), (0, 4, 9, 9)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        twin = x.detach().clone().requires_grad_()
        y, expected = layer(x), dense(twin)
        torch.testing.assert_close(y, expected)
        grad = torch.randn_like(y)
        layer.zero_grad()
        dense.zero_grad()
        y.backward(grad)
        expected.backward(grad)
        torch.testing.assert_close(x.grad, twin.grad)
        torch.testing.assert_close(layer.values.grad, dense.weight.grad.flatten(1)[mask])
    with torch.no_grad():
        x = torch.randn(1, 4, 9, 9, dtype=torch.float64)
        torch.testing.assert_close(layer(x), dense(x))
        layer.values.mul_(2)
        torch.testing.assert_close(layer.eval()(x), layer.to_dense()(x))


@pytest.mark.parametrize("name", OPTIONS)
def test_mode_kernel_equals_float64_in_values_and_gradients(name):
    layer, _, _ = make(mode="kernel", dtype=torch.float32, **OPTIONS[name])
    twin = copy.deepcopy(layer).double()
    twin.mode = "jit"
    for shape in ((2, 4, 9, 8), (4, 7, 9), (0, 4, 9, 9)):
        x = torch.randn(shape)
        with strict():
            y, *found = run_with_gradients(layer, x)
        expected_y, *expected = run_with_gradients(twin, x.double())
        torch.testing.assert_close(y.double(), expected_y, rtol=1e-5, atol=1e-5)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=1e-4)


def run_with_gradients(layer, x):
    x = x.detach().requires_grad_()
    y = layer(x)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return y, *torch.autograd.grad(y, (x, *layer.parameters()), grad)


def test_mode_kernel_sees_edits_new_masks_and_frozen_sides():
    layer, _, mask = make(mode="kernel", dtype=torch.float32, padding=1)
    x = torch.randn(2, 4, 6, 6)
    with torch.no_grad():
        layer.values.mul_(2)
        torch.testing.assert_close(layer(x), layer.to_dense()(x), rtol=1e-5, atol=1e-5)
        layer.remap(~mask)
        layer.values.normal_()
        torch.testing.assert_close(layer(x), layer.to_dense()(x), rtol=1e-5, atol=1e-5)
    layer.values.requires_grad_(False)
    layer(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    assert layer.values.grad is None


def test_mode_kernel_falls_back_where_it_must():
    layer, _, _ = make(mode="kernel", dtype=torch.float32, padding=1)
    x = torch.randn(1, 4, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
        with strict(), pytest.raises(DenseFallback, match=r"autocast wants torch\.bfloat16"):
            layer(x)
    with strict(), pytest.raises(DenseFallback, match=r"float32, got torch\.float64"):
        layer.double()(x.double())


def test_second_derivatives():
    layer, _, _ = make(padding=1)
    x = torch.randn(1, 4, 4, 3, dtype=torch.float64, requires_grad=True)

    def run(x, values):
        weight = ops.expand_values(values, layer.mask_bits, layer.matrix_shape[1])
        return layer.settings.apply(x, weight.view(layer.weight_shape), layer.bias)

    values = layer.values.detach().requires_grad_()
    assert torch.autograd.gradcheck(run, (x, values))
    assert torch.autograd.gradgradcheck(run, (x, values))
    torch.library.opcheck(
        torch.ops.gossamer.expand_values.default, (values, layer.mask_bits, layer.matrix_shape[1])
    )
    dense = torch.randn(layer.matrix_shape, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(
        torch.ops.gossamer.gather_values.default, (dense, layer.mask_bits, layer.nnz)
    )


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.floats(0, 1),
)
def test_round_trip_through_dense(multiple, groups, kernel, density):
    dense = nn.Conv2d(4, 4 * multiple, kernel, groups=groups)
    mask = torch.rand(dense.out_channels, dense.weight[0].numel()) < density
    layer = Conv2d.from_dense(dense, mask)
    assert (layer.nnz, layer.weight_shape) == (int(mask.sum()), tuple(dense.weight.shape))
    assert layer.density == pytest.approx(float(mask.float().mean()))
    back = layer.to_dense()
    assert torch.equal(back.weight, dense.weight * mask.view(dense.weight.shape))
    assert repr(back) == repr(dense)
    again = Conv2d.from_dense(back, layer.mask())
    assert torch.equal(again.values, layer.values)
    assert again.mask_digest() == layer.mask_digest()


def test_state_dict_round_trip_also_to_another_mask():
    layer, _, _ = make()
    other, _, _ = make(density=0.8)
    assert set(layer.state_dict()) == {"values", "bias", "mask_bits"}
    parameter = other.values
    other.load_state_dict(layer.state_dict())
    assert other.values is parameter
    assert torch.equal(other.mask(), layer.mask())
    x = torch.randn(1, 4, 6, 6, dtype=torch.float64)
    assert torch.equal(other(x), layer(x))


def test_state_dicts_that_do_not_fit_are_refused():
    layer, _, _ = make()
    state = layer.state_dict()
    with pytest.raises(RuntimeError, match="the mask keeps"):
        layer.load_state_dict({**state, "values": state["values"][:-1]})
    with pytest.raises(RuntimeError, match="mask_bits"):
        layer.load_state_dict({**state, "mask_bits": state["mask_bits"][:-1]})


def test_remap_moves_values_and_optimizer_state():
    layer, _, mask = make()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    layer(x).square().sum().backward()
    optimizer.step()
    before, moments = layer.to_dense().weight.flatten(1), optimizer.state[layer.values]
    spread = ops.expand_values(moments["exp_avg"], layer.mask_bits, layer.matrix_shape[1])
    new_mask = mask.roll(1, 0)
    layer.remap(new_mask, optimizer)
    kept = torch.where(mask & new_mask, before, 0.0)
    assert torch.equal(layer.to_dense().weight.flatten(1), kept)
    moved = optimizer.state[layer.values]["exp_avg"]
    assert torch.equal(moved, torch.where(mask, spread, 0.0)[new_mask])
    layer(x).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("mode", ["jit", "kernel"])
def test_compact_takes_the_same_steps_as_masked(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, groups=2))
    gossamer.sparsify(model, sparsity=0.7)
    assert isinstance(model[0], MaskedConv2d)
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, twin)]
    x = torch.randn(2, 3, 8, 8)
    for step in range(4):
        if step == 2:
            result = gossamer.compact(twin, optimizers[1], mode=mode)
            assert result.compacted == ["0", "2"]
            assert isinstance(twin[0], Conv2d)
            assert twin[0].mode == mode
        for net, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(twin[0].to_dense().weight, model[0].to_dense().weight)
    torch.testing.assert_close(twin(x), model(x))


@pytest.mark.parametrize("mode", ["jit", "resident", "kernel"])
def test_saved_and_loaded(tmp_path, mode):
    model = nn.Sequential(nn.Conv2d(4, 8, (3, 1), 2, (1, 0), groups=2), nn.BatchNorm2d(8))
    gossamer.sparsify(model, sparsity=0.6)
    gossamer.compact(model, mode=mode)
    gossamer.save(model, tmp_path / "model")
    loaded = gossamer.load(tmp_path / "model")
    assert isinstance(loaded[0], Conv2d)
    assert loaded[0].mode == mode
    assert loaded[0].settings == model[0].settings
    x = torch.randn(2, 4, 9, 9)
    assert torch.equal(loaded.eval()(x), model.eval()(x))
    # Into the user's own models: dense, masked and compact.
    dense = nn.Sequential(nn.Conv2d(4, 8, (3, 1), 2, (1, 0), groups=2), nn.BatchNorm2d(8))
    for own in (dense, copy.deepcopy(model)):
        into = gossamer.load(tmp_path / "model", model=own)
        torch.testing.assert_close(into.eval()(x), model(x))


@pytest.mark.parametrize("mode", ["jit", "kernel"])
def test_float_modes_and_compilers(mode):
    layer, _, _ = make(mode=mode, dtype=torch.float32, padding=1)
    x = torch.randn(1, 4, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))


def test_what_is_refused():
    layer, dense, mask = make()
    with pytest.raises(WeightIsCompact, match=r"compact Conv2d has no \.weight"):
        layer.weight.sum()
    with pytest.raises(InputError, match="mode must be one of"):
        Conv2d.from_dense(dense, mask, mode="fast")
    with pytest.raises(InputError, match=r"is \[6, 36\], but the mask is \[6, 35\]"):
        Conv2d.from_dense(dense, mask[:, :35])
    with pytest.raises(PatternError):
        Conv2d.from_dense(dense, torch.ones_like(mask), parse_pattern("2:4"))
    with pytest.raises(InputError, match=r"mask_bits must be \[5, 5\]"):
        Conv2d(layer.values, layer.mask_bits, ConvSettings(4, 5, (3, 3)))
    with pytest.raises(InputError, match="the mask keeps"):
        Conv2d(layer.values[1:], layer.mask_bits, layer.settings, pattern=Unstructured())


def test_repr_says_what_it_is():
    layer, _, _ = make(stride=2, groups=2, dilation=2, padding_mode="reflect", padding=1)
    text = repr(layer)
    for part in ("4, 6, kernel_size=(3, 3)", "groups=2", "dilation=(2, 2)", "reflect", "nnz="):
        assert part in text
