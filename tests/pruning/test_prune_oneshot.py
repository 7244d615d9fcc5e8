# SPDX-License-Identifier: Apache-2.0
import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oneshot_runs import prune_oneshot
from torch import nn

import gossamer.nn as gnn
from gossamer.errors import GossamerError, InputError, PatternError, RegistryError, TargetError
from gossamer.nn.layers import MaskedOutProj
from gossamer.patterns import parse_pattern
from gossamer.pruning import Scorer, register_scorer
from gossamer.pruning.methods import SCORERS, random_scorer


def mlp(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8)).to(dtype)


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 8))


@settings(deadline=None, max_examples=40)
@given(st.floats(0, 0.999), st.integers(1, 17), st.integers(1, 17))
def test_counts_are_exact_and_the_largest_survive(sparsity, out, inp):
    model = nn.Sequential(nn.Linear(inp, out))
    weight = model[0].weight.detach().clone()
    (result,) = prune_oneshot(model, sparsity=sparsity)
    expected = round((1 - sparsity) * out * inp)
    assert result.nnz == model[0].nnz == expected
    mask = model[0].mask()
    kept, dropped = weight.abs()[mask], weight.abs()[~mask]
    if len(kept) and len(dropped):
        assert kept.min() >= dropped.max()
    assert torch.equal(model[0].to_dense().weight, weight * mask)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_float_types(dtype):
    model = mlp(dtype)
    prune_oneshot(model, sparsity=0.5)
    assert model[0].nnz == 192
    assert model[0].weight.dtype is dtype


def test_exact_counts_when_all_weights_are_equal():
    model = mlp()
    nn.init.constant_(model[0].weight, 1.0)
    prune_oneshot(model, sparsity=0.9)
    assert model[0].nnz == round(0.1 * 16 * 24)


def test_global_budget_is_exact_over_all_layers():
    model = mlp()
    with torch.no_grad():
        model[2].weight.mul_(10)
    weights = torch.cat([model[i].weight.detach().flatten().abs() for i in (0, 2)])
    results = prune_oneshot(model, sparsity=0.7, budget="global")
    total = round(0.3 * weights.numel())
    assert sum(r.nnz for r in results) == total
    threshold = weights.topk(total).values[-1]
    assert (model[0].weight[model[0].mask()].abs() >= threshold).all()
    assert model[2].density > model[0].density


def test_a_layer_may_lose_everything_under_the_global_budget():
    model = mlp()
    with torch.no_grad():
        model[0].weight.mul_(1e-6)
    prune_oneshot(model, sparsity=0.9, budget="global")
    assert model[0].nnz == 0
    assert model(torch.randn(2, 16)).isfinite().all()


def test_erk_budget_is_exact():
    model = mlp()
    results = prune_oneshot(model, sparsity=0.8, budget="erk")
    assert sum(r.nnz for r in results) == round((1 - 0.8) * (16 * 24 + 24 * 8))


@pytest.mark.parametrize("pattern", ["2:4", "4:2:8", "nmg:1:2:4", "block:4x4"])
def test_patterns_hold(pattern):
    model = mlp()
    rule = parse_pattern(pattern)
    sparsity = 0.5 if rule.fixed_density is None else None
    results = prune_oneshot(model, sparsity=sparsity, pattern=pattern)
    for result, layer in zip(results, (model[0], model[2]), strict=True):
        rule.validate(layer.mask())
        assert layer.pattern == rule
        assert result.nnz == layer.nnz


@pytest.mark.parametrize("pattern", ["2:4", "4:2:8", "nmg:1:2:4", "block:4x4", "unstructured"])
def test_pruning_twice_changes_nothing(pattern):
    model = mlp()
    sparsity = 0.5 if parse_pattern(pattern).fixed_density is None else None
    prune_oneshot(model, sparsity=sparsity, pattern=pattern)
    before = [model[i].mask() for i in (0, 2)]
    layers = [model[0], model[2]]
    with torch.no_grad():
        model[0].weight.add_(1)
    prune_oneshot(model, sparsity=sparsity, pattern=pattern)
    assert [model[0], model[2]] == layers
    assert all(torch.equal(a, model[i].mask()) for a, i in zip(before, (0, 2), strict=True))


@pytest.mark.parametrize("budget", ["uniform", "global"])
def test_pruning_further_stays_within_the_mask(budget):
    model = mlp()
    prune_oneshot(model, sparsity=0.5)
    old = [model[i].mask() for i in (0, 2)]
    with torch.no_grad():
        model[0].weight.add_(5.0)  # drift under the mask must not bring anything back
    results = prune_oneshot(model, sparsity=0.9, budget=budget)
    for mask, index in zip(old, (0, 2), strict=True):
        assert not (model[index].mask() & ~mask).any()
    assert sum(r.nnz for r in results) in {round(0.1 * 576), 38 + 19}


def test_kept_zeros_outrank_pruned_weights_when_pruning_further():
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    prune_oneshot(model, sparsity=0.5)
    with torch.no_grad():
        model[0].weight.zero_()
    prune_oneshot(model, sparsity=0.75)
    assert model[0].mask().tolist() == [[False, False, True, False]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"sparsity": 0.9}, {"sparsity": 0.5}),
        ({"sparsity": 0.9}, {"pattern": "2:4"}),
        ({"sparsity": 0.9}, {"sparsity": 0.5, "budget": "global"}),
    ],
)
def test_pruned_weights_do_not_come_back_silently(first, second):
    model = mlp()
    prune_oneshot(model, **first)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"^0: is masked already.*to_dense\(\)"):
        prune_oneshot(model, **second)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_mask_is_held_in_training():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
    prune_oneshot(model, sparsity=0.75)
    mask = model[0].mask()
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
    assert torch.equal(model[0].mask(), mask)
    assert not model[0].to_dense().weight[~mask].any()
    assert not model.state_dict()["0.weight"][~mask].any()


def test_parameters_keep_identity_name_and_optimizer():
    model = mlp()
    parameters = dict(model.named_parameters())
    prune_oneshot(model, sparsity=0.5)
    assert {k: id(v) for k, v in model.named_parameters()} == {
        k: id(v) for k, v in parameters.items()
    }


def test_convolutions_are_masked():
    model = convnet()
    dense = copy.deepcopy(model)
    conv, linear = prune_oneshot(model, sparsity=0.5)
    assert (conv.kind, conv.shape, conv.matrix_shape) == ("Conv2d", (4, 2, 3, 3), (4, 18))
    assert conv.nnz == model[0].nnz == 36
    assert linear.nnz == 64
    with torch.no_grad():
        dense[0].weight.mul_(model[0].mask().view(4, 2, 3, 3))
        dense[2].weight.mul_(model[2].mask())
    x = torch.randn(2, 2, 4, 4)
    assert torch.equal(model(x), dense(x))


def test_tied_layers_share_weight_and_mask():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    (result,) = prune_oneshot(model, sparsity=0.5)
    assert result.tied == ("1",)
    assert model[0].weight is model[1].weight
    assert model[0].mask_bits is model[1].mask_bits
    model[0].set_mask(~model[0].mask())
    assert torch.equal(model[0].mask(), model[1].mask())
    twin = copy.deepcopy(model)
    twin[1].set_mask(torch.zeros(4, 4, dtype=torch.bool))
    assert twin[0].nnz == 0
    assert model[0].nnz == 8
    again = prune_oneshot(model, sparsity=0.75)
    assert again[0].nnz == model[1].nnz == 4


def test_shared_module_stays_shared():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    prune_oneshot(model, sparsity=0.5)
    assert model[0] is model[2]
    assert isinstance(model[0], gnn.MaskedLinear)


def test_attention_output_and_encoder_fast_path():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1)
    prune_oneshot(model, sparsity=0.5)
    assert isinstance(model.layers[0].self_attn.out_proj, MaskedOutProj)
    assert type(model.layers[0].linear1) is gnn.MaskedLinear
    assert not model.layers[0].activation_relu_or_gelu
    assert not model.use_nested_tensor
    prune_oneshot(model, sparsity=0.75)
    assert model.layers[0].self_attn.out_proj.nnz == 16


def with_nan(model):
    with torch.no_grad():
        model[2].weight[1, 1] = math.nan
    return model


def integer(model):
    model[2].weight = nn.Parameter(torch.ones(8, 24, dtype=torch.int8), requires_grad=False)
    return model


def frozen_by_inference_mode():
    with torch.inference_mode():
        return mlp()


BAD = [
    (mlp, {"sparsity": 50}, InputError, r"must be in \[0, 1\), got 50\. Write 0\.5 for 50 %\."),
    (mlp, {"sparsity": 1.0}, InputError, r"must be in \[0, 1\), got 1\.0"),
    (mlp, {"sparsity": -0.1}, InputError, r"must be in \[0, 1\), got -0\.1"),
    (mlp, {"sparsity": math.nan}, InputError, r"must be in \[0, 1\), got nan"),
    (mlp, {"sparsity": math.inf}, InputError, "got inf"),
    (mlp, {"sparsity": "0.5"}, InputError, "expected a number in.*got '0.5'"),
    (mlp, {"sparsity": True}, InputError, "expected a number"),
    (mlp, {}, PatternError, "needs a density; give sparsity"),
    (mlp, {"pattern": "2:5"}, PatternError, r"0\.weight \[24, 16\].*2:5"),
    (mlp, {"sparsity": 0.9, "pattern": "2:4"}, PatternError, "keeps exactly 0.5"),
    (mlp, {"pattern": "nonsense"}, PatternError, "nonsense"),
    (mlp, {"pattern": "2:4", "budget": "erk"}, InputError, "'erk'.*fixes it at 0.5"),
    (mlp, {"pattern": "2:4", "budget": "global"}, InputError, "'global'.*fixes it at 0.5"),
    (mlp, {"sparsity": 0.5, "budget": "fair"}, RegistryError, "no budget is called 'fair'"),
    (mlp, {"sparsity": 0.5, "budget": 3}, InputError, "budget: expected a name"),
    (mlp, {"sparsity": 0.5, "scorer": "magnitud"}, RegistryError, "Did you mean 'magnitude'"),
    (mlp, {"sparsity": 0.5, "scorer": 3}, InputError, "scorer: expected a name"),
    (mlp, {"sparsity": 0.5, "targets": ["fc"]}, TargetError, "'fc' matched 0"),
    (lambda: with_nan(mlp()), {"sparsity": 0.5}, InputError, r"2\.weight: 1 of 192 .*NaN"),
    (lambda: integer(mlp()), {"sparsity": 0.5}, InputError, r"2\.weight: .*int8"),
    (lambda: mlp().to("meta"), {"sparsity": 0.5}, InputError, r"0\.weight: .*meta device"),
    (frozen_by_inference_mode, {"sparsity": 0.5}, InputError, r"0\.weight: .*inference_mode"),
    (nn.Sequential, {"sparsity": 0.5}, TargetError, "no Linear or Conv2d"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "error", "words"), BAD)
def test_bad_input_is_refused_and_the_model_untouched(make, options, error, words):
    model = make()
    kinds = [type(m) for m in model.modules()]
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=words) as caught:
        prune_oneshot(model, **options)
    assert isinstance(caught.value, GossamerError)
    assert [type(m) for m in model.modules()] == kinds
    for key, value in model.state_dict().items():
        if not value.is_meta:
            assert torch.equal(value.nan_to_num(), before[key].nan_to_num())


def test_infinite_weights_are_kept_first():
    model = nn.Sequential(nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight[0, 2] = math.inf
    prune_oneshot(model, sparsity=0.75)
    assert model[0].mask().tolist() == [[False, False, True, False]]


def test_random_scorer_is_reproducible_and_seeded():
    masks = []
    for seed in (0, 0, 1):
        model = mlp()
        prune_oneshot(model, sparsity=0.5, scorer=random_scorer(seed))
        masks.append(model[0].mask())
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    model = mlp()
    prune_oneshot(model, sparsity=0.5, scorer="random")
    assert torch.equal(model[0].mask(), masks[0])


@pytest.fixture
def wanda_like():
    @register_scorer("wanda_like", needs="activations", scope="blocking")
    def score(context):
        return context.weight_RK.abs() * context.inputs.square().mean(0).sqrt()

    yield "wanda_like"
    SCORERS.remove("wanda_like")


@pytest.mark.parametrize("kind", ["tensor", "tuple", "mapping"])
def test_activation_scorer_sees_the_inputs(wanda_like, kind):
    model = mlp()
    x = torch.randn(30, 16) * torch.linspace(0, 2, 16)
    data = {"tensor": [x[:10], x[10:]], "tuple": [(x,)], "mapping": [{"input": x}]}[kind]
    expected = model[0].weight.detach().abs() * x.square().mean(0).sqrt()
    prune_oneshot(model, sparsity=0.5, scorer=wanda_like, data=data)
    assert expected[model[0].mask()].min() >= expected[~model[0].mask()].max()
    assert model.training
    assert not model[0]._forward_pre_hooks


def test_activation_scorer_without_what_it_needs(wanda_like):
    options = {"sparsity": 0.5, "scorer": wanda_like}
    with pytest.raises(InputError, match=r"'wanda_like' needs activations: give batches with data"):
        prune_oneshot(mlp(), **options)
    with pytest.raises(InputError, match=r"0: .*Linear layers only"):
        prune_oneshot(convnet(), **options, data=[torch.randn(1, 2, 4, 4)])
    with pytest.raises(InputError, match="0: no calibration batch reached"):
        prune_oneshot(mlp(), **options, data=[])
    attention = nn.Sequential(nn.MultiheadAttention(4, 2))
    with pytest.raises(InputError, match=r"0\.out_proj: no calibration batch"):
        prune_oneshot(attention, **options, data=[])


def test_scorers_are_checked():
    def prune_with(score, **declared):
        prune_oneshot(mlp(), sparsity=0.5, scorer=Scorer("mine", score, **declared))

    with pytest.raises(InputError, match=r"'mine' on 0: expected scores of shape \[24, 16\]"):
        prune_with(lambda c: torch.ones(3))
    with pytest.raises(InputError, match=r"floating point scores, got torch\.int64"):
        prune_with(lambda c: torch.ones(24, 16, dtype=torch.int64))
    with pytest.raises(InputError, match="384 scores are NaN"):
        prune_with(lambda c: torch.full((24, 16), math.nan))
    with pytest.raises(InputError, match="needs gradients"):
        prune_with(lambda c: c.weight_RK, needs="gradients")
    with pytest.raises(InputError, match="needs must be one of none, activations, gradients"):
        Scorer("mine", lambda c: c.weight_RK, needs="hessian")
