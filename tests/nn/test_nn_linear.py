# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer.nn as gnn
from gossamer.errors import InputError, PatternError, WeightIsCompact
from gossamer.formats.bits import pack_bits
from gossamer.ops.training import linear as ops

MODES = ["jit", "resident", "kernel"]


def make(out=7, inp=13, density=0.4, bias=True, dtype=torch.float64, mode="jit", seed=0):
    """A compact layer and the dense layer with zeros that it must equal."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    dense = nn.Linear(inp, out, bias, dtype=dtype)
    mask = torch.rand(out, inp, generator=generator) < density
    compact = gnn.Linear.from_dense(copy.deepcopy(dense), mask, mode=mode)
    with torch.no_grad():
        dense.weight.masked_fill_(~mask, 0)
    return compact, dense, mask


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lead", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (2, 3, 4)])
def test_forward_and_gradients_equal_dense(mode, lead):
    compact, dense, mask = make(mode=mode)
    x1 = torch.randn(*lead, 13, dtype=torch.float64, requires_grad=True)
    x2 = x1.detach().clone().requires_grad_()
    y1, y2 = compact(x1), dense(x2)
    torch.testing.assert_close(y1, y2, rtol=0, atol=1e-14)
    grad = torch.randn_like(y1)
    y1.backward(grad)
    y2.backward(grad)
    torch.testing.assert_close(x1.grad, x2.grad, rtol=0, atol=1e-13)
    torch.testing.assert_close(compact.values.grad, dense.weight.grad[mask], rtol=0, atol=1e-13)
    torch.testing.assert_close(compact.bias.grad, dense.bias.grad, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize(("out", "inp"), [(1, 1), (1, 8), (9, 1), (3, 16)])
def test_nothing_kept_and_everything_kept(mode, density, out, inp):
    compact, dense, mask = make(out, inp, density, mode=mode)
    assert compact.nnz == int(mask.sum())
    x = torch.randn(4, inp, dtype=torch.float64)
    torch.testing.assert_close(compact(x), dense(x), rtol=0, atol=1e-14)
    compact(x).sum().backward()
    assert compact.values.grad.shape == compact.values.shape


@settings(deadline=None, max_examples=40)
@given(
    out=st.integers(1, 20),
    inp=st.integers(1, 20),
    tokens=st.integers(0, 9),
    density=st.floats(0, 1),
    bias=st.booleans(),
    mode=st.sampled_from(MODES),
)
def test_any_shape_equals_float64_oracle(out, inp, tokens, density, bias, mode):
    compact, dense, mask = make(out, inp, density, bias, mode=mode)
    x = torch.randn(tokens, inp, dtype=torch.float64)
    torch.testing.assert_close(compact(x), dense(x), rtol=0, atol=1e-13)
    assert torch.equal(compact.mask(), mask)
    assert torch.equal(compact.to_dense().weight, dense.weight)


@pytest.mark.parametrize("mode", MODES)
def test_non_contiguous_input(mode):
    compact, dense, _ = make(mode=mode)
    x = torch.randn(13, 5, 4, dtype=torch.float64).permute(2, 1, 0)
    assert not x.is_contiguous()
    torch.testing.assert_close(compact(x), dense(x), rtol=0, atol=1e-14)
    assert compact(x).is_contiguous()


@pytest.mark.parametrize("mode", MODES)
def test_gradcheck_and_second_derivatives(mode):
    compact, _, _ = make(5, 6, mode=mode)
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)

    def call(x, values, bias):
        state = {"values": values, "bias": bias}
        return torch.func.functional_call(compact, state, (x,))

    inputs = (x, compact.values, compact.bias)
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_frozen_sides_get_no_gradient():
    compact, _, _ = make()
    compact.values.requires_grad_(False)
    x = torch.randn(3, 13, dtype=torch.float64, requires_grad=True)
    compact(x).sum().backward()
    assert compact.values.grad is None
    assert x.grad is not None
    frozen_input = torch.randn(3, 13, dtype=torch.float64)
    compact.values.requires_grad_(True)
    compact(frozen_input).sum().backward()
    assert compact.values.grad is not None


def test_backward_keeps_no_dense_weight():
    compact, _, _ = make(64, 64)
    x = torch.randn(2, 64, dtype=torch.float64, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        compact(x)
    assert max(saved) < 64 * 64
    assert sorted(saved) == sorted([x.numel(), compact.nnz, compact.mask_bits.numel()])


def test_ops_pass_opcheck():
    mask = torch.rand(7, 13) < 0.4
    bits = pack_bits(mask)
    f64 = {"dtype": torch.float64, "requires_grad": True}
    values, bias = torch.randn(int(mask.sum()), **f64), torch.randn(7, **f64)
    x, grad = torch.randn(2, 3, 13, **f64), torch.randn(2, 3, 7, **f64)
    dense = torch.empty(7, 13, dtype=torch.float64)
    for args in [(x, values, bits, bias, 13), (x, values, bits, None, 13)]:
        torch.library.opcheck(torch.ops.gossamer.compact_linear.default, args)
    torch.library.opcheck(
        torch.ops.gossamer.compact_linear_grad_input.default, (grad, values, bits, 13)
    )
    torch.library.opcheck(
        torch.ops.gossamer.compact_linear_grad_values.default, (grad, x, bits, values.numel())
    )
    torch.library.opcheck(
        torch.ops.gossamer.resident_linear.default, (x, values, dense, bits, bias)
    )
    torch.library.opcheck(torch.ops.gossamer.expand_into.default, (dense, values.detach(), bits))


@pytest.mark.parametrize("mode", MODES)
def test_compile_fullgraph_with_backward(mode):
    torch._dynamo.reset()
    compact, _, _ = make(mode=mode)
    reference = copy.deepcopy(compact)
    compiled = torch.compile(compact, fullgraph=True, backend="aot_eager")
    for tokens in (4, 6):
        x = torch.randn(tokens, 13, dtype=torch.float64)
        y = compiled(x)
        y.square().sum().backward()
        z = reference(x)
        z.square().sum().backward()
        torch.testing.assert_close(y, z, rtol=0, atol=1e-14)
    torch.testing.assert_close(compact.values.grad, reference.values.grad, rtol=0, atol=1e-12)


# torch's own inductor imports a module that warns.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compile_with_inductor():
    torch._dynamo.reset()
    compact, dense, _ = make(dtype=torch.float32)
    model = nn.Sequential(compact, nn.ReLU())
    x = torch.randn(4, 13)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x), dense(x).relu())


@pytest.mark.parametrize("mode", MODES)
def test_export(mode):
    compact, dense, _ = make(mode=mode)
    x = torch.randn(4, 13, dtype=torch.float64)
    tokens = torch.export.Dim("tokens", min=2)
    exported = torch.export.export(nn.Sequential(compact), (x,), dynamic_shapes=({0: tokens},))
    longer = torch.randn(9, 13, dtype=torch.float64)
    torch.testing.assert_close(exported.module()(longer), dense(longer), rtol=0, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_deepcopy_is_independent(mode):
    compact, _, _ = make(mode=mode)
    x = torch.randn(3, 13, dtype=torch.float64)
    before = compact(x)
    twin = copy.deepcopy(compact)
    with torch.no_grad():
        twin.values.mul_(2)
    assert torch.equal(compact(x), before)
    assert not torch.equal(twin(x), before)


@pytest.mark.parametrize("mode", MODES)
def test_strict_state_dict_round_trip(mode):
    source, dense, mask = make(seed=1, mode=mode)
    target, _, _ = make(seed=2, mode=mode)
    assert source.nnz != target.nnz
    parameter = target.values
    target.load_state_dict(source.state_dict(), strict=True)
    assert target.values is parameter
    assert set(source.state_dict()) == {"values", "mask_bits", "bias"}
    assert torch.equal(target.mask(), mask)
    x = torch.randn(3, 13, dtype=torch.float64)
    torch.testing.assert_close(target(x), dense(x), rtol=0, atol=1e-14)


def _damaged(change):
    model = nn.Sequential(make()[0])
    state = {key: value.clone() for key, value in model.state_dict().items()}
    change(state)
    untouched = copy.deepcopy(model)
    return model, state, untouched


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update({"0.values": s["0.values"][:-1]}), r"0\.values: the mask keeps \d+"),
        (lambda s: s["0.mask_bits"].bitwise_or_(0x80), r"0\.mask_bits: padding bits"),
        (lambda s: s.update({"0.mask_bits": s["0.mask_bits"][:-1]}), r"0\.mask_bits: a packed"),
        (lambda s: s.update({"0.mask_bits": s["0.mask_bits"].int()}), r"0\.mask_bits: a packed"),
        (lambda s: s["0.mask_bits"].fill_(0), r"0\.values: the mask keeps 0"),
        (lambda s: s.update({"0.values": s["0.values"][:, None]}), r"0\.values: the mask keeps"),
        (lambda s: (s.pop("0.values"), s["0.mask_bits"].fill_(0)), "came without its values"),
    ],
)
def test_state_that_does_not_belong_together_is_refused(change, words):
    model, state, untouched = _damaged(change)
    with pytest.raises(RuntimeError, match=words):
        model.load_state_dict(state)
    for name, tensor in untouched.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_to_dtype(dtype, mode):
    compact, dense, _ = make(mode=mode)
    compact(torch.randn(2, 13, dtype=torch.float64))
    compact.to(dtype)
    assert compact.values.dtype is dtype
    assert compact.mask_bits.dtype is torch.uint8
    x = torch.randn(2, 13, dtype=torch.float64).to(dtype)
    tolerance = {"rtol": 0, "atol": 13 * torch.finfo(dtype).eps}
    torch.testing.assert_close(compact(x), dense.to(dtype)(x), **tolerance)


def test_wrong_input_is_refused_with_the_reason():
    compact, _, _ = make(dtype=torch.float32)
    with pytest.raises(InputError, match=r"13 features.*\[2, 12\]"):
        compact(torch.randn(2, 12))
    with pytest.raises(InputError, match=r"float64.*float32"):
        compact(torch.randn(2, 13, dtype=torch.float64))
    with pytest.raises(InputError, match=r"int64"):
        compact(torch.ones(2, 13, dtype=torch.int64))
    with pytest.raises(InputError, match="meta"):
        compact(torch.randn(2, 13, device="meta"))
    with pytest.raises(InputError, match="13 features"):
        compact(torch.tensor(1.0))


@pytest.mark.parametrize("mode", MODES)
def test_autocast_follows_nn_linear(mode):
    compact, dense, mask = make(dtype=torch.float32, mode=mode)
    x = torch.randn(4, 13)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, z = compact(x), dense(x)
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y, z)
    y.float().sum().backward()
    z.float().sum().backward()
    assert compact.values.grad.dtype is torch.float32
    torch.testing.assert_close(compact.values.grad, dense.weight.grad[mask])


def test_computing_with_weight_raises_with_advice():
    compact, dense, _ = make()
    weight = compact.weight
    assert (weight.dtype, weight.shape) == (dense.weight.dtype, dense.weight.shape)
    assert "weight" not in dict(compact.named_parameters())
    with pytest.raises(WeightIsCompact, match=r"to_dense\(\)\.weight"):
        weight * 2
    with pytest.raises(AttributeError, match="no attribute 'wait'"):
        _ = compact.wait


def test_bad_construction_is_refused():
    dense = nn.Linear(8, 4)
    with pytest.raises(PatternError, match="bool mask"):
        gnn.Linear.from_dense(dense, torch.ones(4, 8))
    with pytest.raises(InputError, match=r"\[4, 8\].*\[8, 4\]"):
        gnn.Linear.from_dense(dense, torch.ones(8, 4, dtype=torch.bool))
    with pytest.raises(
        InputError, match="mode must be one of jit, resident, kernel, samo; got 'fast'"
    ):
        gnn.Linear.from_dense(dense, torch.ones(4, 8, dtype=torch.bool), mode="fast")
    bits = torch.full((4, 1), 255, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"keeps 32 weights.*\[31\]"):
        gnn.Linear(torch.randn(31), bits, 8)
    integer = nn.Linear(8, 4)
    integer.weight = nn.Parameter(torch.ones(4, 8, dtype=torch.int32), requires_grad=False)
    with pytest.raises(InputError, match="int32"):
        gnn.Linear.from_dense(integer, torch.ones(4, 8, dtype=torch.bool))
    with pytest.raises(InputError, match="meta device"):
        gnn.Linear.from_dense(nn.Linear(8, 4, device="meta"), torch.ones(4, 8, dtype=torch.bool))


def test_exact_values_survive():
    dense = nn.Linear(4, 1, bias=False)
    special = torch.tensor([[0.0, -0.0, float("inf"), float("nan")]])
    with torch.no_grad():
        dense.weight.copy_(special)
    compact = gnn.Linear.from_dense(dense, torch.ones(1, 4, dtype=torch.bool))
    assert compact.nnz == 4
    assert torch.equal(
        compact.to_dense().weight.detach().view(torch.int32), special.view(torch.int32)
    )


def test_hooks_and_mode_are_taken_over():
    dense = nn.Linear(4, 4).eval()
    calls = []
    handle = dense.register_forward_hook(lambda *_: calls.append(1))
    compact = gnn.Linear.from_dense(dense, torch.ones(4, 4, dtype=torch.bool))
    assert not compact.training
    compact(torch.randn(1, 4))
    handle.remove()
    compact(torch.randn(1, 4))
    assert calls == [1]


def test_mask_digest_depends_on_shape_and_positions():
    first, _, mask = make()
    assert first.mask_digest() == make()[0].mask_digest()
    moved = mask.flatten().roll(1).view_as(mask)
    first.remap(moved)
    assert first.mask_digest() != make()[0].mask_digest()
    wide = gnn.Linear.from_dense(nn.Linear(8, 2), torch.zeros(2, 8, dtype=torch.bool))
    narrow = gnn.Linear.from_dense(nn.Linear(7, 2), torch.zeros(2, 7, dtype=torch.bool))
    assert wide.mask_digest() != narrow.mask_digest()


class TestResident:
    def test_follows_optimizer_and_data_edits(self):
        layer, _, _ = make(mode="resident")
        x = torch.randn(3, 13, dtype=torch.float64)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(3):
            layer(x).square().sum().backward()
            optimizer.step()
            layer.values.data.mul_(1.5)
            assert torch.equal(layer(x), layer.to_dense()(x))
        layer.eval()
        assert torch.equal(layer(x), layer.to_dense()(x))
        with torch.no_grad():
            layer.values.add_(1)
        assert torch.equal(layer(x), layer.to_dense()(x))
        layer.values.data.mul_(2)
        layer.refresh()
        assert torch.equal(layer(x), layer.to_dense()(x))

    def test_eval_rebuilds_once(self, monkeypatch):
        layer = make(mode="resident")[0].eval()
        calls = []
        original = ops.expand_into
        monkeypatch.setattr(
            "gossamer.nn.layers.compact.expand_into", lambda *a: calls.append(1) or original(*a)
        )
        x = torch.randn(3, 13, dtype=torch.float64)
        for _ in range(4):
            layer(x)
        assert calls == [1]

    def test_two_forwards_before_backward(self):
        layer, dense, mask = make(mode="resident")
        x = torch.randn(3, 13, dtype=torch.float64)
        (layer(x).square().sum() + layer(2 * x).square().sum()).backward()
        (dense(x).square().sum() + dense(2 * x).square().sum()).backward()
        torch.testing.assert_close(layer.values.grad, dense.weight.grad[mask], rtol=0, atol=1e-12)

    def test_values_changed_before_backward_are_noticed(self):
        layer, _, _ = make(mode="resident")
        x = torch.randn(3, 13, dtype=torch.float64, requires_grad=True)
        loss = layer(x).sum()
        with torch.no_grad():
            layer.values.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_trains_after_inference_mode(self):
        layer = make(mode="resident")[0].eval()
        x = torch.randn(3, 13, dtype=torch.float64)
        with torch.inference_mode():
            layer(x)
        layer(x).sum().backward()
        assert layer.values.grad is not None
        with torch.inference_mode():
            frozen = make(mode="resident")[0].eval()
            assert torch.equal(frozen(x), frozen.to_dense()(x))

    def test_dense_copy_is_neither_saved_nor_a_buffer(self):
        layer, _, _ = make(mode="resident")
        layer(torch.randn(3, 13, dtype=torch.float64))
        assert [name for name, _ in layer.named_buffers()] == ["mask_bits"]
        assert "dense" not in "".join(layer.state_dict())
