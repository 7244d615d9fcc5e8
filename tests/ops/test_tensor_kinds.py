# SPDX-License-Identifier: Apache-2.0
"""Every way to hand a tensor to a sparse layer gives the right numbers or an error of gossamer.

Native code reads memory by its address. A tensor may be negated, wrapped, fake or traced: what lies
at its address is then not what it means. Only where the dense layer fails too may torch complain.
"""

import contextlib
import warnings
from pathlib import Path

import native_calls
import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.masked import masked_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import gossamer
from gossamer.errors import GossamerError, InputError
from gossamer.ops.addresses import runs_native
from gossamer.running.conv_net import NetForward
from gossamer.running.encoder import NativeEncoder
from gossamer.running.layers import compile
from gossamer.running.layers.neurons import ActiveNeurons, pack_block

pytestmark = pytest.mark.filterwarnings("ignore")


class Packed(nn.Module):
    """A packed weight with a bias, as PackedLinear and PackedConv2d call it."""

    def __init__(self, run, bias):
        super().__init__()
        self.run, self.bias = run, nn.Parameter(bias, requires_grad=False)

    def forward(self, x):
        return self.run(x, self.bias, "none")


def dense_linear(weight, bias):
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


def packed_linear():
    run, weight = native_calls.pack_linear(native_calls.PANEL)
    bias = native_calls.random(weight.shape[0])
    return Packed(run, bias), dense_linear(weight, bias), native_calls.random(6, weight.shape[1])


def packed_conv():
    run, weight = native_calls.pack_conv()
    dense = nn.Conv2d(4, 6, 3, padding=1)
    dense.weight, dense.bias = nn.Parameter(weight), nn.Parameter(native_calls.random(6))
    return Packed(run, dense.bias.detach()), dense, native_calls.random(2, 4, 7, 7)


def compact(kind, mode):
    made = (native_calls.compact_linear if kind == "linear" else native_calls.compact_conv)(mode)
    x = native_calls.random(6, 80) if kind == "linear" else native_calls.random(2, 4, 7, 7)
    return made, made.to_dense(), x


class Hidden(nn.Module):
    """The encoder of a model by its hidden states."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x):
        return self.encoder(x, None).last_hidden_state


def encoder():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    gossamer.sparsify(model, sparsity=0.6)
    fast = compile(model, tokens=64)
    assert isinstance(fast.encoder, NativeEncoder)
    return Hidden(fast.encoder), Hidden(model.encoder), native_calls.random(2, 20, 24)


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))


def net():
    torch.manual_seed(0)
    model, x = SmallNet().eval(), native_calls.random(2, 4, 8, 8)
    gossamer.sparsify(model, sparsity=0.5, ignore=["head"])
    fast = compile(model, example=x)
    assert isinstance(fast.forward, NetForward)
    return fast, model, x


def neurons():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(24, 70), nn.ReLU(), nn.Linear(70, 24))
    return ActiveNeurons(block, pack_block(block), 4), block, native_calls.random(3, 24)


LAYERS = {
    "packed linear": packed_linear,
    "packed conv": packed_conv,
    "encoder": encoder,
    "net": net,
    "neurons": neurons,
    **{
        f"compact {kind} {mode}": lambda kind=kind, mode=mode: compact(kind, mode)
        for kind in ("linear", "conv")
        for mode in ("jit", "resident", "kernel")
    },
}
MADE: dict[str, tuple[nn.Module, nn.Module, torch.Tensor]] = {}


@pytest.fixture(params=LAYERS)
def made(request, monkeypatch):
    """(sparse layer, dense layer, input)."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    if request.param not in MADE:
        MADE[request.param] = LAYERS[request.param]()
    return MADE[request.param]


class Tagged(torch.Tensor):
    """A subclass with nothing of its own."""


class Counted(torch.Tensor):
    """A subclass that sees every function."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """Holds another tensor; its own memory is nothing."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride()
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def bare(value):
            return value.inner if isinstance(value, Wrapped) else value

        result = func(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        return tree_map(lambda v: Wrapped(v) if isinstance(v, torch.Tensor) else v, result)


class Seen(TorchDispatchMode):
    """Sees every operation and changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def bare(y):
    """The numbers of a result."""
    if isinstance(y, Wrapped):
        y = y.inner
    if y.layout is torch._mkldnn or y.is_sparse:
        y = y.to_dense()
    return y.as_subclass(torch.Tensor)


def dual(f, x):
    with fwad.dual_level():
        y = fwad.unpack_dual(f(fwad.make_dual(x, torch.ones_like(x))))
        return torch.zeros_like(y.primal) if y.tangent is None else y.tangent.clone()


def traced(f, x):
    return torch.jit.trace(f, (torch.zeros_like(x),), check_trace=False, strict=False)(x)


def seen(f, x):
    with Seen():
        return f(x)


# name: what a layer `f` and an input give, without gradients. The dense layer says what is right.
USES = {
    "plain": lambda f, x: f(x),
    "inference": lambda f, x: torch.inference_mode()(f)(x),
    "parameter": lambda f, x: f(nn.Parameter(x)),
    "requires grad": lambda f, x: f(x.clone().requires_grad_()),
    "negative": lambda f, x: f(torch._neg_view(-x)),
    "imaginary": lambda f, x: f(torch.complex(x, -x).conj().imag),
    "zero": lambda f, x: f(torch._efficientzerotensor(x.shape)),
    "strided": lambda f, x: f(torch.stack([x, x + 1], -1)[..., 0]),
    "expanded": lambda f, x: f(x[:1].expand(x.shape)),
    "channels last": lambda f, x: f(x.transpose(0, -1).contiguous().transpose(0, -1)),
    "double": lambda f, x: f(x.double()),
    "bfloat16": lambda f, x: f(x.bfloat16()),
    "subclass": lambda f, x: bare(f(x.as_subclass(Tagged))),
    "function subclass": lambda f, x: bare(f(x.as_subclass(Counted))),
    "wrapper": lambda f, x: bare(f(Wrapped(x))),
    "masked": lambda f, x: f(masked_tensor(x, torch.ones_like(x, dtype=torch.bool))).get_data(),
    "mkldnn": lambda f, x: bare(f(x.to_mkldnn())),
    "sparse": lambda f, x: bare(f(x.to_sparse())),
    "nested": lambda f, x: f(torch.nested.nested_tensor([x[0], x[1]])).to_padded_tensor(0.0),
    "jagged": lambda f, x: f(
        torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)
    ).to_padded_tensor(0.0),
    "vmap": lambda f, x: torch.vmap(f)(torch.stack([x, x + 1, x - 1])),
    "vmap last": lambda f, x: torch.vmap(f, -1, -1)(torch.stack([x, x + 1, x - 1], -1)),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
    "dispatch mode": seen,
    "forward ad": dual,
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "jvp of vmap": lambda f, x: torch.func.jvp(
        torch.vmap(f), (x[None],), (torch.ones_like(x)[None],)
    )[1],
    "vmap of jvp": lambda f, x: torch.vmap(
        lambda v: torch.func.jvp(f, (v,), (torch.ones_like(v),))[1]
    )(x[None]),
    "func grad": lambda f, x: torch.func.grad(lambda v: f(v).square().sum())(x),
    "vjp": lambda f, x: torch.func.vjp(lambda v: f(v).sum(), x)[1](torch.tensor(1.0))[0],
    "jit.trace": traced,
    "make_fx": lambda f, x: make_fx(f)(torch.zeros_like(x))(x),
    "make_fx fake": lambda f, x: make_fx(f, tracing_mode="fake")(torch.zeros_like(x))(x),
    "make_fx symbolic": lambda f, x: make_fx(f, tracing_mode="symbolic")(torch.zeros_like(x))(x),
    "fx": lambda f, x: torch.fx.symbolic_trace(f)(x),
}


@pytest.mark.parametrize("use", USES)
def test_right_or_an_error_of_gossamer(made, use):
    sparse, dense, x = made
    with torch.no_grad():
        try:
            wanted = USES[use](dense, x)
        except Exception as error:
            wanted = error
        try:
            got = USES[use](sparse, x)
        except GossamerError:
            return
        except Exception:
            if isinstance(wanted, Exception):
                return  # torch refuses the dense layer as well
            raise
    if isinstance(wanted, Exception):
        # More than the dense layer can: then it must be what the plain input gives.
        wanted = dense(x)
    tolerance = 2e-2 if use == "bfloat16" else 1e-4
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def test_some_uses_are_right(made):
    """The ones that users meet, so that the rule above is not kept by refusing everything."""
    sparse, dense, x = made
    for use in ("negative", "strided", "subclass", "jit.trace", "make_fx", "dispatch mode"):
        with torch.no_grad():
            got, wanted = USES[use](sparse, x), USES[use](dense, x)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=use)


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("mode", ["jit", "resident", "kernel"])
@pytest.mark.parametrize("form", ["plain", "negative", "expanded", "zero", "double backward"])
def test_backward_reads_what_a_gradient_means(kind, mode, form):
    sparse, dense, x = compact(kind, mode)
    grads = []
    for layer in (sparse, dense):
        inputs = x.clone().requires_grad_()
        y = layer(inputs)
        gradient = native_calls.random(*y.shape, seed=9)
        if form == "negative":
            gradient = torch._neg_view(gradient)
        elif form == "expanded":
            gradient = gradient.flatten()[0].expand(y.shape)
        elif form == "zero":
            gradient = torch._efficientzerotensor(y.shape)
        again = form == "double backward"
        (grad,) = torch.autograd.grad(y, inputs, gradient, create_graph=again)
        if again:
            grads.append(torch.autograd.grad(grad.square().sum(), layer.bias, allow_unused=True))
        grads.append(grad)
    torch.testing.assert_close(grads[: len(grads) // 2], grads[len(grads) // 2 :])


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("mode", ["jit", "resident", "kernel"])
def test_a_tangent_in_the_backward_is_not_dropped(kind, mode):
    sparse, dense, x = compact(kind, mode)

    def tangent(layer):
        inputs = x.clone().requires_grad_()
        y = layer(inputs)
        with fwad.dual_level():
            gradient = fwad.make_dual(torch.zeros_like(y), torch.ones_like(y))
            (grad,) = torch.autograd.grad(y, inputs, gradient)
            return fwad.unpack_dual(grad).tangent

    wanted = tangent(dense)
    with contextlib.suppress(GossamerError):
        torch.testing.assert_close(tangent(sparse), wanted)


def test_fake_tensors_stay_fake(made):
    sparse, dense, x = made
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        got = sparse(mode.from_tensor(x))
        assert type(got) is type(mode.from_tensor(x))
    assert got.shape == dense(x).shape


def test_the_bias_and_the_summand_are_asked_too():
    run, weight = native_calls.pack_linear(native_calls.PANEL)
    x, bias = native_calls.random(3, weight.shape[1]), native_calls.random(weight.shape[0])
    plain = run(x, bias)
    assert torch.equal(run(x, torch._neg_view(-bias)), plain)
    with contextlib.suppress(InputError):
        assert torch.equal(run(x, torch._efficientzerotensor(bias.shape)), run(x))
    assert torch.equal(run(x, bias.as_subclass(Tagged)).as_subclass(torch.Tensor), plain)
    with pytest.raises(InputError, match="bias"):
        torch.vmap(run, (None, 0))(x, torch.stack([bias, bias]))
    conv, _ = native_calls.pack_conv()
    images = native_calls.random(2, 4, 7, 7)
    summand = native_calls.random(2, 6, 7, 7, seed=4)
    plain = conv(images, None, "relu", summand)
    assert torch.equal(conv(images, None, "relu", torch._neg_view(-summand)), plain)
    both = torch.vmap(lambda a, b: conv(a, None, "relu", b))
    assert torch.equal(both(images[:, None], summand[:, None])[:, 0], plain)
    one = torch.vmap(lambda b: conv(images, None, "relu", b))
    assert torch.equal(one(torch.stack([summand, summand]))[1], plain)


def test_weights_that_are_views_are_packed_right():
    layer = native_calls.compact_linear()
    wanted = layer.dense_weight()
    values = layer.values.detach()
    with torch.no_grad():
        layer.values = nn.Parameter(torch._neg_view(-values))
    assert torch.equal(layer.dense_weight(), wanted)


def test_optimizer_steps_look_before_they_read():
    assert runs_native(torch.ones(4), None)
    assert not runs_native(torch._neg_view(torch.ones(4)))
    assert not runs_native(torch._efficientzerotensor(4))
    assert not runs_native(torch.ones(4, device="meta"))


def test_addresses_are_asked_for_in_one_place():
    """`data_ptr` elsewhere in ops would be a reader that nobody checks."""
    ops = Path(gossamer.__file__).parent / "ops"
    # Results that were just made, inputs that `direct_address` has passed, and an address that is
    # only compared with an older one.
    own = {"addresses.py", "linear/packed_weight.py", "conv/packed_conv.py", "table/inference.py"}
    own.add("linear/dense.py")
    found = {str(f.relative_to(ops)) for f in ops.rglob("*.py") if "data_ptr" in f.read_text()}
    assert found == own


def test_onnx_of_compact_layers_is_right(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    empty = native_calls.compact_linear("jit", 48, 5)
    empty.remap(torch.zeros(5, 48, dtype=torch.bool))
    for mode in ("jit", "resident", "kernel"):
        conv, linear = native_calls.compact_conv(mode), native_calls.compact_linear(mode, 49, 48)
        model = nn.Sequential(conv, nn.ReLU(), nn.Flatten(2), linear, empty).eval()
        x = native_calls.random(2, 4, 7, 7)
        for dynamo in (False, True) if mode == "jit" else (False,):
            path = tmp_path / f"{mode}{dynamo}.onnx"
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                torch.onnx.export(model, (x,), str(path), dynamo=dynamo, verbose=False)
                wanted = model(x)
            file = onnx.load(path)
            feeds = {file.graph.input[0].name: x.numpy()}
            got = torch.from_numpy(ReferenceEvaluator(file).run(None, feeds)[0])
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx_of_a_compiled_model_is_a_sentence(made, dynamo, tmp_path):
    pytest.importorskip("onnxscript")
    sparse, _, x = made
    if not any(isinstance(module, Packed | NativeEncoder) for module in sparse.modules()):
        return  # exports as what it is made of
    # The newer exporter raises its own error and quotes the first one.
    expected = Exception if dynamo else InputError
    with pytest.raises(expected, match="has no ONNX form") as told, torch.no_grad():
        torch.onnx.export(sparse, (x,), str(tmp_path / "m.onnx"), dynamo=dynamo, verbose=False)
    assert "--format" in str(told.value)
