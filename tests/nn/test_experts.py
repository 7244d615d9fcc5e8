"""The layer kind "experts" in all its forms, against a loop over ordinary Linears in float64."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError, PatternError
from gossamer.formats import SparseMatrix
from gossamer.nn import Experts
from gossamer.nn.forms import to_compact, to_dense, to_masked
from gossamer.nn.layer_kinds import form_of, kind_name
from gossamer.nn.layer_weights import matrix_of
from gossamer.nn.layers.experts import GroupedLinear, MaskedExperts
from gossamer.ops.experts import Routes
from gossamer.patterns import parse_pattern

# Edge cases first: no token at all, one expert, all tokens to one of them, empty ones between.
COUNTS = [(0, 0, 0), (4,), (5, 0, 0), (0, 0, 5), (2, 0, 3), (1, 1, 1), (3, 4, 2)]
PATTERNS = ["unstructured", "2:4", "block:4x4", "16:2:8", "nmg:2:4:4"]


def make(counts, bias=True, dtype=torch.float64, width=24, rows=16):
    torch.manual_seed(0)
    layer = GroupedLinear(len(counts), width, rows, bias, dtype=dtype)
    x = torch.randn(sum(counts), width, dtype=dtype, requires_grad=True)
    return layer, x


def looped(layer, x, counts):
    """What so many ordinary Linears make of the same tokens."""
    weight, bias = to_dense(layer).weight, layer.bias
    parts = []
    for expert, tokens in enumerate(x.split(list(counts))):
        own = slice(expert * layer.out_features, (expert + 1) * layer.out_features)
        added = None if bias is None else bias[own]
        parts.append(nn.functional.linear(tokens, weight[own], added))
    return torch.cat(parts)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("counts", COUNTS)
def test_the_dense_layer_is_a_loop_over_experts(counts, bias):
    layer, x = make(counts, bias)
    y, wanted = layer(x, counts), looped(layer, x, counts)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)
    seed = torch.randn_like(y)
    grads = torch.autograd.grad(y, [x, *layer.parameters()], seed)
    for found, expected in zip(
        grads, torch.autograd.grad(wanted, [x, *layer.parameters()], seed), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_one_expert_is_a_linear_to_the_bit():
    layer, x = make((6,), dtype=torch.float32)
    dense = nn.Linear(24, 16)
    dense.weight, dense.bias = layer.weight, layer.bias
    assert torch.equal(layer(x, (6,)), dense(x))


def test_a_gradient_that_is_one_number_is_taken():
    layer, x = make((2, 0, 3))
    layer(x, (2, 0, 3)).sum().backward()
    assert not layer.weight.grad[16:32].any()
    assert layer.weight.grad[32:].any()


@pytest.mark.parametrize("mode", ["jit", "resident", "kernel"])
@pytest.mark.parametrize("counts", COUNTS)
def test_masked_and_compact_agree_with_the_loop(counts, mode):
    dtype = torch.float32 if mode == "kernel" else torch.float64
    atol = 1e-5 if mode == "kernel" else 1e-12
    layer, x = make(counts, dtype=dtype)
    mask = torch.rand(layer.weight.shape) < 0.4
    mask[:16] = False  # the first expert keeps nothing, the others unequal numbers
    masked = to_masked(layer, mask, parse_pattern("unstructured"))
    assert isinstance(masked, MaskedExperts)
    assert kind_name(masked) == "experts"
    held = masked.matrix()
    compact = to_compact(masked, held.values, held.positions.bits(), masked.pattern, mode)
    assert isinstance(compact, Experts)
    assert compact.kept_of_experts()[0] == 0
    wanted = looped(masked, x, counts)
    seed = torch.randn_like(wanted)
    (dx,) = torch.autograd.grad(wanted, x, seed)
    for made in (masked, compact):
        y = made(x, counts)
        torch.testing.assert_close(y, wanted, rtol=0, atol=atol)
        own = torch.autograd.grad(y, [x, made.trained()], seed)
        torch.testing.assert_close(own[0], dx, rtol=0, atol=atol)
        dense = made.gathered(own[1]) if made is masked else made.spread(own[1])
        if made is masked:
            by_mask = dense
    torch.testing.assert_close(dense, by_mask, rtol=0, atol=atol)
    with torch.no_grad():
        torch.testing.assert_close(compact.eval()(x, counts), wanted, rtol=0, atol=atol)


class Mixture(nn.Module):
    """A fixed way through experts, so that every form meets the same tokens."""

    def __init__(self, experts=3, width=48, rows=48):
        super().__init__()
        self.up = GroupedLinear(experts, width, rows)
        self.down = GroupedLinear(experts, rows, width, bias=False)

    def forward(self, x):
        index = torch.arange(2 * len(x)).view(-1, 2) % self.up.num_experts
        routes = Routes.of_choice(index, self.up.num_experts)
        hidden = self.up(routes.gather(x), routes.counts).relu()
        weights = torch.full((len(routes.tokens),), 0.5, dtype=x.dtype)
        return routes.combine(self.down(hidden, routes.counts), weights)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_goes_through_every_step(pattern, tmp_path):
    torch.manual_seed(1)
    model, x = Mixture(), torch.randn(7, 48)
    fixed = {} if parse_pattern(pattern).fixed_density else {"sparsity": 0.75}
    report = gossamer.sparsify(model, pattern=pattern, **fixed)
    assert {layer.kind for layer in report.layers} == {"Experts"}
    with torch.no_grad():
        wanted = copy.deepcopy(model).double()(x.double())
    fast = gossamer.compile(model, tokens=(1, 8), kernel="panel")
    assert {form_of(layer) for layer in (fast.up, fast.down)} == {"packed"}
    assert {row.kernel for row in gossamer.explain(fast)} == {"panel"}
    compact = copy.deepcopy(model)
    gossamer.compact(compact)
    for name, made in {"masked": model, "packed": fast, "compact": compact}.items():
        with torch.no_grad():
            torch.testing.assert_close(made(x).double(), wanted, rtol=0, atol=1e-5)
        gossamer.save(made, tmp_path / name)
        again = gossamer.load(tmp_path / name, model=Mixture())
        assert form_of(again.up) == ("compact" if name == "packed" else name)
        for own, layer in zip((again.up, again.down), (model.up, model.down), strict=True):
            assert torch.equal(matrix_of(own).dense(), matrix_of(layer).dense())
            assert own.mask_digest() == layer.mask_digest()


def test_layers_in_a_container_are_loaded_without_the_model(tmp_path):
    model = nn.ModuleList([GroupedLinear(2, 8, 6), GroupedLinear(1, 6, 0, bias=False)])
    gossamer.sparsify(model, sparsity=0.5, targets=["0"])
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    assert torch.equal(again[0].dense_weight(), model[0].dense_weight())
    assert (again[1].num_experts, again[1].out_features) == (1, 0)


def test_stacking_is_undone():
    torch.manual_seed(0)
    parts = [SparseMatrix.from_dense(torch.randn(4, 9) * (torch.rand(4, 9) < d)) for d in (0, 1, 3)]
    whole = SparseMatrix.stack(parts)
    for part, again in zip(parts, whole.unstack(3), strict=True):
        assert torch.equal(part.dense(), again.dense())
        assert part.nnz == again.nnz
    dense = SparseMatrix.from_dense(torch.ones(6, 5), torch.ones(6, 5, dtype=torch.bool))
    assert [part.positions.mask_bits for part in dense.unstack(2)] == [None, None]


def test_compaction_takes_the_state_of_the_optimizer_along():
    torch.manual_seed(0)
    model, x = Mixture(), torch.randn(9, 48)
    gossamer.sparsify(model, sparsity=0.5)
    twin = copy.deepcopy(model)
    runs = []
    for made in (model, twin):
        optimizer = torch.optim.AdamW(made.parameters(), lr=0.01)
        for step in range(4):
            if step == 2 and made is twin:
                gossamer.compact(made, optimizer)
            optimizer.zero_grad()
            made(x).square().mean().backward()
            optimizer.step()
        runs.append(made(x))
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pattern", ["block:4x4", "64:2:8"])
def test_tiles_across_two_experts_are_refused_before_anything_changes(pattern):
    model = Mixture(experts=2, rows=40)
    model.up = GroupedLinear(2, 48, 42)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(PatternError, match="would belong to two experts"):
        gossamer.sparsify(model, pattern=pattern, sparsity=None if ":2:" in pattern else 0.5)
    assert isinstance(model.up, GroupedLinear)
    assert form_of(model.up) == "dense"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tokens_and_counts_that_differ_are_refused():
    layer, x = make((2, 3))
    with pytest.raises(InputError, match="expected 4 tokens"):
        layer(x, (2, 2))
    compact = Experts.from_dense(layer, torch.ones(32, 24, dtype=torch.bool))
    with pytest.raises(InputError, match="do not belong"):
        compact(x, (2, 2))
    with pytest.raises(InputError, match="do not belong"):
        compact(x, (5,))
    with pytest.raises(InputError, match="at least 1"):
        GroupedLinear(0, 3, 3)


@pytest.mark.parametrize("tokens", [0, 1, 2, 5])
@pytest.mark.parametrize("k", [1, 3])
def test_routes_bring_tokens_to_their_experts_and_back(tokens, k):
    torch.manual_seed(tokens)
    index = torch.stack([torch.randperm(4)[:k] for _ in range(tokens)]) if tokens else None
    index = torch.empty(0, k, dtype=torch.int64) if index is None else index
    weights, x = torch.rand(tokens, k).double(), torch.randn(tokens, 6).double()
    routes = Routes.of_choice(index, 4)
    assert sum(routes.counts) == tokens * k
    sent = routes.gather(x).split(list(routes.counts))
    made = torch.cat([(expert + 1) * part for expert, part in enumerate(sent)])
    result = routes.combine(made, routes.weights(weights))
    wanted = (weights * (index + 1)).sum(1, keepdim=True) * x
    torch.testing.assert_close(result, wanted, rtol=0, atol=1e-12)
