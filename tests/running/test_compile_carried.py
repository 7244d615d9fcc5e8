# SPDX-License-Identifier: Apache-2.0
"""Whatever an nn.Module can carry: compile keeps it or refuses the layer, and never drops it."""

import copy
import functools
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from encoder_models import tiny_encoder
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, prune

import gossamer
from gossamer.errors import DenseFallback
from gossamer.nn.layers import Linear, MaskedConv2d, MaskedLinear
from gossamer.running.encoder import NativeEncoder
from gossamer.running.layers import compile, explain
from gossamer.running.packed import PackedConv2d, PackedLinear


@pytest.fixture
def sparse_wins(monkeypatch):
    """The rule without measurements: a layer this sparse runs on a kernel."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


def with_zeros(model, sparsity=0.8):
    """The plain layers of a model, with exact zeros in their weights."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.weight.data.mul_(torch.rand_like(module.weight) >= sparsity)
    return model.eval()


class Double(nn.Module):
    def forward(self, x):
        return 2 * x


def replace_forward(layer):
    own = layer.forward
    layer.forward = lambda x: 2 * own(x)


def bind_forward(layer):
    layer.forward = types.MethodType(lambda self, x: 2 * type(self).forward(self, x), layer)


def own_class(layer):
    class Mine(type(layer)):
        def forward(self, x):
            return 2 * super().forward(x)

    layer.__class__ = Mine


def own_call(layer):
    class Wrapped(type(layer)):
        def __call__(self, x):
            return 2 * super().__call__(x)

    layer.__class__ = Wrapped


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(layer)


def shadow(layer):
    layer.extra_repr = lambda: "mine"


def compute_weight(layer):
    weight = layer.weight.detach() * 2
    del layer.weight
    layer.weight = weight


def add_module(layer):
    layer.child = nn.ReLU()


# name -> (what is done to the layer, what `explain` says)
FEATURES = {
    "forward hook": (
        lambda m: m.register_forward_hook(lambda _, x, y: 2 * y),
        "a forward hook",
    ),
    "forward hook with kwargs, always called": (
        lambda m: m.register_forward_hook(
            lambda _, x, kwargs, y: 2 * y, with_kwargs=True, always_call=True
        ),
        "a forward hook",
    ),
    "forward pre-hook": (
        lambda m: m.register_forward_pre_hook(lambda _, x: (2 * x[0],)),
        "a forward pre-hook",
    ),
    "forward pre-hook with kwargs": (
        lambda m: m.register_forward_pre_hook(
            lambda _, x, kwargs: ((2 * x[0],), kwargs), with_kwargs=True
        ),
        "a forward pre-hook",
    ),
    "full backward hook": (
        lambda m: m.register_full_backward_hook(lambda *_: None),
        "a backward hook",
    ),
    "backward pre-hook": (
        lambda m: m.register_full_backward_pre_hook(lambda *_: None),
        "a backward pre-hook",
    ),
    "state_dict hook": (
        lambda m: m.register_state_dict_post_hook(lambda *_: None),
        "a state_dict hook",
    ),
    "state_dict pre-hook": (
        lambda m: m.register_state_dict_pre_hook(lambda *_: None),
        "a state_dict pre-hook",
    ),
    "load pre-hook": (
        lambda m: m.register_load_state_dict_pre_hook(lambda *_: None),
        "a load_state_dict pre-hook",
    ),
    "load hook": (
        lambda m: m.register_load_state_dict_post_hook(lambda *_: None),
        "a load_state_dict hook",
    ),
    "parametrization": (
        lambda m: nn.utils.parametrize.register_parametrization(m, "weight", Double()),
        "parametrized",
    ),
    "weight_norm": (parametrizations.weight_norm, "parametrized"),
    "spectral_norm": (parametrizations.spectral_norm, "parametrized"),
    "old weight_norm": (old_weight_norm, "a forward pre-hook"),
    "torch.nn.utils.prune": (
        lambda m: prune.l1_unstructured(m, "weight", 0.2),
        r"gossamer.io.adopt_pruned(model)",
    ),
    "forward set on the instance": (replace_forward, "forward was replaced"),
    "forward bound to the instance": (bind_forward, "forward was replaced"),
    "class with a forward": (own_class, "class of its own"),
    "class with a __call__": (own_call, "__call__ of its own"),
    "a buffer": (
        lambda m: m.register_buffer("steps", torch.zeros(1)),
        "a tensor of its own, 'steps'",
    ),
    "a parameter": (
        lambda m: m.register_parameter("gain", nn.Parameter(torch.ones(1))),
        "a tensor of its own, 'gain'",
    ),
    "a computed weight": (compute_weight, "its weight is computed"),
    "a module": (add_module, "holds a module, 'child'"),
    "a method of the instance": (shadow, "was replaced on this instance"),
}
# Masked and compact layers are asked by the same function; one feature of each kind will do.
SPARSE_FEATURES = ["forward hook", "state_dict hook", "forward set on the instance"]
SPARSE_FEATURES += ["class with a forward", "a buffer"]
CASES = [("plain", feature) for feature in FEATURES]
CASES += [(form, feature) for form in ("masked", "compact") for feature in SPARSE_FEATURES]


class Net(nn.Module):
    def __init__(self, conv, form="plain"):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1) if conv else nn.Linear(24, 16)
        self.last = nn.Conv2d(8, 4, 1) if conv else nn.Linear(16, 8)
        if form == "plain":
            with_zeros(self)
        else:
            gossamer.sparsify(self, sparsity=0.8)
            if form == "compact":
                gossamer.compact(self)
        self.eval()

    def forward(self, x):
        return self.last(F.relu(self.first(x)))


@pytest.mark.parametrize(("form", "feature"), CASES)
@pytest.mark.parametrize("conv", [False, True])
def test_what_a_layer_carries_is_kept(sparse_wins, conv, form, feature):
    add, said = FEATURES[feature]
    model = Net(conv, form)
    add(model.first)
    x = torch.randn(2, 3, 6, 6) if conv else torch.randn(5, 24)
    expected = model(x).detach()
    fast = compile(model, tokens=5, example=x)
    with torch.no_grad():  # a closure calls the layer it was made of, which has gradients
        torch.testing.assert_close(fast(x), expected, rtol=1e-5, atol=1e-5)
    assert type(fast.first) is type(model.first)
    assert isinstance(fast.last, PackedConv2d if conv else PackedLinear)
    (why,) = {row.why for row in explain(fast) if row.name == "first"}
    assert said in why
    with gossamer.strict(), pytest.raises(DenseFallback, match="first: "):
        compile(model, tokens=5, example=x)


def test_attributes_of_users_are_handed_over(sparse_wins):
    for form in ("plain", "masked", "compact"):
        model = Net(False, form)
        model.first.tag = "mine"
        fast = compile(model)
        assert isinstance(fast.first, PackedLinear)
        assert fast.first.tag == "mine"


def test_a_module_compiled_by_itself_stays(sparse_wins):
    model, x = Net(False), torch.randn(5, 24)
    model.first.compile(backend="eager")
    expected = model(x).detach()
    fast = compile(model, inplace=True)
    torch.testing.assert_close(fast(x), expected)
    assert "compiled by itself" in explain(fast)[0].why


@pytest.mark.parametrize(
    "register",
    [
        torch_module.register_module_forward_hook,
        torch_module.register_module_forward_pre_hook,
        torch_module.register_module_full_backward_hook,
    ],
)
def test_hooks_on_all_modules_leave_everything(sparse_wins, register):
    model, x = Net(False), torch.randn(5, 24)
    handle = register(lambda module, *_: None)
    try:
        fast = compile(model)
        assert type(fast.first) is nn.Linear
        assert "for all modules" in explain(fast)[0].why
        torch.testing.assert_close(fast(x), model(x))
    finally:
        handle.remove()


class Recorder:
    def __init__(self):
        self.seen = []

    def note(self, module, inputs, output):
        self.seen.append(output)


@pytest.mark.parametrize("kind", ["method", "partial", "object"])
def test_hooks_of_the_copy_record_where_those_of_the_model_do(sparse_wins, kind):
    model, recorder = Net(False), Recorder()
    seen = recorder.seen
    hook = {
        "method": recorder.note,
        "partial": functools.partial(lambda store, *call: store.append(call[-1]), seen),
        "object": type("Hook", (), {"__call__": lambda self, *call: seen.append(call[-1])})(),
    }[kind]
    model.first.register_forward_hook(hook)
    compile(model)(torch.randn(5, 24))
    assert len(seen) == 1


def test_a_hook_of_the_model_itself_belongs_to_the_copy(sparse_wins):
    class Counting(Net):
        calls = 0

        def count(self, *_):
            self.calls += 1

    model = Counting(False)
    model.first.register_forward_hook(model.count)
    fast = compile(model)
    fast(torch.randn(5, 24))
    assert (fast.calls, model.calls) == (1, 0)


ENCODER_PARTS = [
    "encoder",
    "encoder.layer.0",
    "encoder.layer.1.attention",
    "encoder.layer.1.attention.self",
    "encoder.layer.0.attention.self.query",
    "encoder.layer.0.attention.output.LayerNorm",
    "encoder.layer.0.intermediate.intermediate_act_fn",
    "encoder.layer.1.output.dropout",
    "encoder.layer.1.output.dense",
]


def scaled(output):
    if isinstance(output, torch.Tensor):
        return 1.5 * output
    if isinstance(output, tuple):
        return tuple(scaled(one) for one in output)
    if hasattr(output, "last_hidden_state"):
        output.last_hidden_state = 1.5 * output.last_hidden_state
    return output


IDS = torch.arange(64).view(2, 32) % 50


ENCODER_CASES = [(path, "hook") for path in ENCODER_PARTS]
ENCODER_CASES += [(ENCODER_PARTS[i], "pre-hook") for i in (0, 4, 7)]
ENCODER_CASES += [(ENCODER_PARTS[i], "forward") for i in (1, 3, 5)]
ENCODER_CASES += [(ENCODER_PARTS[i], "class") for i in (0, 1, 3, 4, 5, 6, 7)]


@pytest.mark.parametrize(("path", "kind"), ENCODER_CASES)
def test_what_modules_of_an_encoder_carry_is_kept(sparse_wins, path, kind):
    model = tiny_encoder("BERT", sparsity=0.8)
    part = model.get_submodule(path)
    if kind == "hook":
        part.register_forward_hook(lambda _, x, y: scaled(y))
    elif kind == "pre-hook":
        part.register_forward_pre_hook(lambda _, x: (1.5 * x[0], *x[1:]))
    elif kind == "forward":
        own = part.forward
        part.forward = lambda *a, **k: scaled(own(*a, **k))
    else:
        base = type(part)
        part.__class__ = type(
            base.__name__, (base,), {"forward": lambda s, *a, **k: scaled(base.forward(s, *a, **k))}
        )
    expected = model(IDS).last_hidden_state
    fast = compile(model, tokens=64)
    torch.testing.assert_close(fast(IDS).last_hidden_state, expected, rtol=1e-4, atol=1e-4)
    assert not isinstance(fast.encoder, NativeEncoder)
    if kind != "class":
        said = "a forward" if "hook" in kind else "forward was replaced"
        assert any(row.name == "encoder" and said in row.why for row in explain(fast))
    if (kind, path) == ("class", "encoder.layer.0"):
        return  # no encoder of a known family: nothing that could fall back
    with gossamer.strict(), pytest.raises(DenseFallback, match="encoder"):
        compile(model, tokens=64)


def test_what_an_encoder_holds_besides_its_layers_is_not_lost(sparse_wins):
    model = tiny_encoder("BERT", sparsity=0.8)
    model.encoder.register_buffer("steps", torch.zeros(1))
    fast = compile(model, tokens=64)
    assert "encoder.steps" in fast.state_dict()
    assert any("holds 'steps' besides its layers" in row.why for row in explain(fast))


def test_another_module_in_the_place_of_a_dropout_is_not_lost(sparse_wins):
    model = tiny_encoder("BERT", sparsity=0.8)
    model.encoder.layer[0].output.dropout = nn.Tanh()
    fast = compile(model, tokens=64)
    torch.testing.assert_close(
        fast(IDS).last_hidden_state, model(IDS).last_hidden_state, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("path", ["", "embeddings", "encoder.layer.0", "encoder.layer.1.output"])
def test_hooks_that_come_after_compile_run(sparse_wins, path):
    fast = compile(tiny_encoder("BERT", sparsity=0.8), tokens=64)
    assert isinstance(fast.encoder, NativeEncoder)
    for model in (fast, copy.deepcopy(fast)):
        seen = []
        part = model.get_submodule(path)
        handle = part.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        model(IDS)
        assert len(seen) == 1
        handle.remove()
        model(IDS)
        assert len(seen) == 1


def test_a_forward_of_the_model_is_not_shortened_away(sparse_wins):
    model = tiny_encoder("BERT", sparsity=0.8)
    own, calls = model.forward, []
    model.forward = lambda *a, **k: calls.append(1) or own(*a, **k)
    fast = compile(model, tokens=64)
    fast(IDS)
    assert len(calls) == 1


def test_hidden_states_that_the_configuration_asks_for(sparse_wins):
    model = tiny_encoder("BERT", sparsity=0.8)
    fast = compile(model, tokens=64)
    fast.config.output_hidden_states = True
    assert len(fast(IDS).hidden_states) == 3
    fast.config.output_hidden_states = False
    # Their hooks are there now and do nothing: one native call again, also when compiled anew.
    assert not fast.encoder._watch.finds_hooks()
    assert isinstance(compile(fast, tokens=64).encoder, NativeEncoder)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm, self.relu = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 1.5)
        with_zeros(self)

    def forward(self, x):
        x = self.blocks(self.relu(self.norm(self.stem(x))))
        return self.head(torch.flatten(self.pool(x), 1))


NET_PARTS = ["stem", "norm", "relu", "blocks", "blocks.0", "blocks.1.conv2", "blocks.1.bn2"]
NET_PARTS += ["blocks.0.relu", "pool", "head"]


NET_CASES = [(path, "hook") for path in NET_PARTS]
NET_CASES += [(path, "recorder") for path in ("stem", "norm", "relu", "blocks.0", "pool")]
NET_CASES += [(path, "forward") for path in ("blocks", "blocks.1.bn2", "blocks.1.conv2")]
NET_CASES += [(path, "pre-hook") for path in ("blocks.0", "blocks.0.relu")]


@pytest.mark.parametrize(("path", "kind"), NET_CASES)
def test_what_modules_of_a_residual_network_carry_is_kept(sparse_wins, monkeypatch, path, kind):
    model, x, seen = ResNet(), torch.randn(2, 3, 8, 8), []
    part = model.get_submodule(path)
    if kind == "hook":
        part.register_forward_hook(lambda _, x, y: 1.5 * y)
    elif kind == "pre-hook":
        part.register_forward_pre_hook(lambda _, x: (1.5 * x[0],))
    elif kind == "recorder":
        part.register_forward_hook(lambda _, x, y: seen.append(y))
    else:
        own = part.forward
        part.forward = lambda x: 1.5 * own(x)
    expected = model(x).detach()
    per_call = len(seen)
    fast = compile(model, tokens=2, example=x)
    seen.clear()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-4)
    assert len(seen) == per_call
    said = "forward was replaced" if kind == "forward" else "carries a forward"
    assert any(row.name == path and said in row.why for row in explain(fast))
    with gossamer.strict(), pytest.raises(DenseFallback, match=path):
        compile(model, tokens=2, example=x)


@pytest.mark.parametrize("path", ["", "relu", "blocks.0", "blocks.1.conv1"])
def test_hooks_on_a_compiled_network_run(sparse_wins, monkeypatch, path):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model, x, seen = ResNet(), torch.randn(2, 3, 8, 8), []
    fast = compile(model, tokens=2, example=x)
    assert "conv_net" in explain(fast)[0].kernel
    expected = fast(x)
    for one in (fast, copy.deepcopy(fast), compile(fast, tokens=2, example=x)):
        assert "conv_net" in explain(one)[0].kernel
        seen.clear()
        handle = one.get_submodule(path).register_forward_hook(lambda _, x, y: seen.append(y))
        torch.testing.assert_close(one(x), expected, rtol=1e-4, atol=1e-4)
        assert seen
        handle.remove()


def test_a_forward_of_the_network_itself_is_kept(sparse_wins, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model, x = ResNet(), torch.randn(2, 3, 8, 8)
    bind_forward(model)
    fast = compile(model, tokens=2, example=x)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert any("forward of the model was replaced" in row.why for row in explain(fast))


def test_neighbours_of_a_sequential_with_a_forward_are_not_folded(sparse_wins):
    class Backwards(nn.Sequential):
        def forward(self, x):
            if x.sum() > 1e9:  # cannot be traced
                return x
            return self[0](self[1](x))

    model = Backwards(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()
    model[1].running_mean.fill_(0.5)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(compile(model)(x), model(x))


@pytest.mark.parametrize("layer", [nn.Linear(8, 8), nn.Conv2d(3, 4, 3)])
def test_subclasses_of_sparse_layers_keep_their_forward(sparse_wins, layer):
    base = MaskedLinear if isinstance(layer, nn.Linear) else MaskedConv2d
    mine = type("Mine", (base,), {"forward": lambda self, x: 2 * base.forward(self, x)})
    mask = torch.rand(layer.weight.flatten(1).shape) < 0.3
    model = nn.Sequential(mine.from_dense(layer, mask, gossamer.patterns.Unstructured())).eval()
    x = torch.randn(2, 8) if isinstance(layer, nn.Linear) else torch.randn(1, 3, 6, 6)
    fast = compile(model, example=x)
    torch.testing.assert_close(fast(x), model(x))
    assert "Mine is a class of its own" in explain(fast)[0].why


def test_a_compact_subclass_keeps_its_forward(sparse_wins):
    class Mine(Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(Mine.from_dense(nn.Linear(8, 8), torch.rand(8, 8) < 0.2)).eval()
    x = torch.randn(2, 8)
    torch.testing.assert_close(compile(model)(x), model(x))
