"""Outputs of operators and modules made sparse by name, in eager, compiled and exported models."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.errors import InputError, TargetError
from gossamer.nn.intermediate import SparseOutput, carry_rules, sites, sparsify_outputs


class Attention(nn.Module):
    """Operators without modules of their own, two of one kind."""

    def __init__(self):
        super().__init__()
        self.q, self.act = nn.Linear(8, 8), nn.GELU()

    def forward(self, x):
        scores = self.act(self.q(x)) @ x.transpose(-1, -2)
        return torch.softmax(scores, -1) @ x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.attention, self.out = Attention(), nn.Linear(8, 8)

    def forward(self, x):
        y = self.attention(x)
        left, right = torch.add(x, y).split(4, -1), y * 2
        right += 1.0
        return F.softmax(self.out(torch.cat(left, -1) + right), -1)


@pytest.fixture
def model():
    return Model()


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
RULES = {
    "attention/softmax": "threshold:0.2",
    "attention.act/gelu": "2:4",
    "attention/matmul.1": SparseOutput(external="fraction:0.5", gradient="fraction:0.25"),
    "out": SparseOutput("threshold:0.1", gradient="through"),
    "/cat": "per-block:0.5:4",
}


def cut(x, threshold):
    return torch.where(x.abs() < threshold, 0.0, x)


def by_hand(model, x):
    """The model with RULES, forwards."""
    a = model.attention
    act = F.gelu(a.q(x)).unflatten(-1, (2, 4))
    act = torch.where(act.abs() >= act.abs().topk(2, -1).values[..., -1:], act, 0.0).flatten(-2)
    y = cut(torch.softmax(act @ x.T, -1), 0.2) @ x
    y = torch.where(y.abs() >= y.abs().flatten().sort().values[y.numel() // 2], y, 0.0)
    both = (x + y).unflatten(-1, (2, 4))
    both = torch.where(both.abs() >= both.abs().topk(2, -1).values[..., -1:], both, 0.0)
    return F.softmax(cut(model.out(both.flatten(-2) + y * 2 + 1), 0.1), -1)


def test_names_of_all_outputs(model):
    names = [site.name for site in sites(model, X)]
    assert names == [
        *("attention.q/linear", "attention.q", "attention.act/gelu", "attention.act"),
        *("attention/matmul.0", "attention/softmax", "attention/matmul.1", "attention"),
        *("/add.0", "/mul", "/add.1", "/cat", "/add.2", "out/linear", "out", "/softmax"),
    ]
    assert model.training


def test_rules_change_what_they_name_and_nothing_else(model):
    dense = model(X)
    attached = sparsify_outputs(model, RULES, X)
    assert torch.allclose(model(X), by_hand(model, X))
    assert list(attached.chosen) == [
        *("attention.act/gelu", "attention/softmax", "attention/matmul.1", "/cat", "out"),
    ]
    again = copy.deepcopy(model)
    attached.remove()
    assert torch.equal(model(X), dense)
    assert torch.allclose(again(X), by_hand(model, X))
    # A copy computes with its own weights.
    again.out.weight.data.zero_()
    assert not torch.allclose(again(X), by_hand(model, X))


def test_a_rule_for_all_calls_and_one_after_it_for_one(model):
    chosen = sparsify_outputs(
        model, {"attention/matmul": "threshold:1", "*/matmul.1": "threshold:2"}, X
    ).chosen
    assert chosen == {
        "attention/matmul.0": SparseOutput("threshold:1"),
        "attention/matmul.1": SparseOutput("threshold:2"),
    }


def test_several_outputs_and_operators_in_place():
    class Parts(nn.Module):
        def forward(self, x):
            h = x.clone()
            h.add_(x)  # its result is not used
            return h, torch.stack([x, -x]).unbind(0)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.parts = nn.LSTM(8, 8), Parts()

        def forward(self, x):
            y, _ = self.lstm(x)
            return self.parts(y)[0]

    torch.manual_seed(0)
    model = Outer()
    names = [site.name for site in sites(model, X)]
    assert names == ["lstm:0", "lstm:1", "lstm:2", "parts/add", "parts:0", "parts:1", "parts:2"]
    wanted = cut(2 * cut(model.lstm(X)[0], 0.1), 0.3)
    sparsify_outputs(model, {"lstm:0": "threshold:0.1", "parts/add": "threshold:0.3"}, X)
    assert torch.equal(model(X), wanted)
    assert float((wanted == 0).float().mean()) > 0


# torch's own inductor imports a module that warns.
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_without_a_break_forwards_and_backwards(model, backend):
    sparsify_outputs(model, RULES, X)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    one, two = (X.clone().requires_grad_() for _ in range(2))
    weight = torch.arange(32.0).view(4, 8)
    y = compiled(one)
    assert torch.allclose(y, model(two), atol=1e-6)
    grads = torch.autograd.grad((y * weight).sum(), [one, *model.parameters()])
    wanted = torch.autograd.grad((model(two) * weight).sum(), [two, *model.parameters()])
    for got, want in zip(grads, wanted, strict=True):
        assert torch.allclose(got, want, atol=1e-5)


def test_exported(model):
    sparsify_outputs(model, RULES, X)
    exported = torch.export.export(model, (X,)).module()
    for x in (X, X * 3):
        assert torch.equal(exported(x), model(x))
    with pytest.raises(Exception, match="strict=False"):
        torch.export.export(model, (X,), strict=True)


def test_what_modules_return_survives_strict_export(model):
    sparsify_outputs(model, {"attention": "threshold:0.5", "*.act/gelu": "2:4"}, X)
    exported = torch.export.export(model, (X,), strict=True).module()
    assert torch.equal(exported(X), model(X))


def test_gradients_follow_their_rule(model):
    arrived = []
    sparsify_outputs(model, {"out": SparseOutput(gradient="fraction:0.75")}, X)
    model.out.register_forward_hook(lambda m, a, y: y.register_hook(arrived.append) and None)
    (model(X) * torch.arange(32.0).view(4, 8)).sum().backward()
    grad = arrived[0]
    largest = grad.abs().flatten().sort().values[-8]
    kept = torch.where(grad.abs() >= largest, grad, 0.0)
    assert torch.allclose(model.out.bias.grad, kept.sum(0))
    assert not torch.allclose(model.out.bias.grad, grad.sum(0))


def test_training_lowers_the_loss(model):
    sparsify_outputs(model, RULES, X)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(model(X), torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("rules", "kind", "part"),
    [
        ({"attention/sofmax": "threshold:1"}, TargetError, "Closest: attention/softmax"),
        ({"re:(": "threshold:1"}, InputError, "regular expression"),
        ({"": "threshold:1"}, TargetError, "expected names"),
        ({"out": "2:3"}, InputError, "out .*divisible by 3"),
        (
            {"out": SparseOutput("2:4", gradient="per-block:0.5:3")},
            InputError,
            "out: .*divisible by 3",
        ),
        ({"out": 3}, InputError, "expected text"),
    ],
)
def test_bad_rules_leave_the_model_as_it_was(model, rules, kind, part):
    dense = model(X)
    with pytest.raises(kind, match=part):
        sparsify_outputs(model, rules, X)
    assert torch.equal(model(X), dense)
    assert not model._forward_hooks
    assert "forward" not in model.__dict__


def test_a_materialising_sparsifier_cannot_be_inline():
    with pytest.raises(InputError, match=r"SparseOutput\(external='fraction:0.9'\)"):
        SparseOutput(inline="fraction:0.9")
    assert SparseOutput.of("fraction:0.9") == SparseOutput(external="fraction:0.9")
    assert SparseOutput.of("threshold:1") == SparseOutput(inline="threshold:1")


def test_rules_are_given_once(model):
    attached = sparsify_outputs(model, {"out": "threshold:1"}, X)
    with pytest.raises(InputError, match="already"):
        sparsify_outputs(model, {"attention/softmax": "threshold:1"}, X)
    attached.remove()
    sparsify_outputs(model, {"attention/softmax": "threshold:1"}, X)


def test_the_random_state_and_statistics_stay_as_they_were():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    state = copy.deepcopy(model.state_dict())
    before = torch.get_rng_state()
    sparsify_outputs(model, {"1": "random:0.5"}, X)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_pruning_compacting_and_compiling_keep_what_modules_return(model):
    sparsify_outputs(model, {"out": "threshold:0.5", "attention.act": "2:4"}, X)
    gossamer.sparsify(model, sparsity=0.5, targets=["attention.q", "out"])
    wanted = model(X)
    assert float((model.out(X) == 0).float().mean()) > 0.1
    gossamer.compact(model)
    assert torch.allclose(model(X), wanted, atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(gossamer.compile(model, tokens=4)(X), wanted, atol=1e-5)


def test_operators_inside_a_module_are_told_from_those_of_a_replaced_one(model):
    gossamer.sparsify(model, sparsity=0.5, targets=["attention.q"])
    sparsify_outputs(model, {"attention/softmax": "threshold:0.2"}, X)
    wanted = model(X)
    gossamer.compact(model)
    assert torch.allclose(model(X), wanted, atol=1e-6)


def test_a_layer_with_rules_for_its_operators_is_not_replaced(model):
    gossamer.sparsify(model, sparsity=0.5, targets=["attention.q"])
    rule = SparseOutput("threshold:0.2", temporary="csr")
    sparsify_outputs(model, {"attention.q/linear": rule}, X)
    wanted, layer = model(X), model.attention.q
    gossamer.compact(model)
    assert model.attention.q is layer
    assert torch.equal(model(X), wanted)
    with pytest.raises(InputError, match=r"\(linear\), which Linear may not call"):
        carry_rules(nn.Linear(8, 8), layer)


def test_encoder_layers_of_torch_leave_their_fused_path():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation=nn.GELU()).eval()
    x = X[None]
    sparsify_outputs(layer, {"linear2/linear": "random:1", "self_attn/attention": "random:1"}, x)
    with torch.no_grad():
        assert torch.allclose(layer(x), layer.norm2(layer.norm1(x)), atol=1e-6)
