# SPDX-License-Identifier: Apache-2.0
import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oneshot_runs import prune_oneshot
from torch import nn

from gossamer.errors import InputError
from gossamer.patterns import NM, Block, Unstructured
from gossamer.patterns.selection import kept_count
from gossamer.pruning import plan_oneshot
from gossamer.pruning.budgets import BUDGETS, BudgetLayer, budget_layers
from gossamer.pruning.budgets.measures import (
    block_of,
    layers_with_errors,
    layers_with_outliers,
    outlier_part,
)
from gossamer.pruning.budgets.table import OWL_SPREAD, lower_hull
from gossamer.pruning.calibration.flow import as_batches
from gossamer.pruning.methods import make_method
from gossamer.pruning.targets import find_targets

OWL, SENSITIVITY = BUDGETS.get("owl"), BUDGETS.get("sensitivity")


class Block2(nn.Module):
    """Two layers in a block, as transformers have them."""

    def __init__(self, width, outlier):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        if outlier:
            self.up.weight.data[:, 0] *= 50

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self, width=8, outliers=(False, True, False)):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block2(width, outlier) for outlier in outliers)
        self.out = nn.Linear(width, 5)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def blocks_data(num_batches=3):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 6, 8, generator=generator) for _ in range(num_batches)]


sizes = st.lists(st.integers(0, 60), min_size=0, max_size=6)


@settings(deadline=None, max_examples=150)
@given(sizes, st.floats(0.001, 1), st.integers(0, 99))
def test_owl_total_is_exact_and_densities_stay_near_the_mean(sizes, density, seed):
    parts = torch.rand(len(sizes), generator=torch.Generator().manual_seed(seed)).tolist()
    layers = [
        BudgetLayer(str(i), (size, 3), outliers=part)
        for i, (size, part) in enumerate(zip(sizes, parts, strict=True))
    ]
    counts = OWL(layers, density)
    assert sum(counts) == kept_count(density, sum(layer.numel for layer in layers))
    for layer, count in zip(layers, counts, strict=True):
        # One weight for rounding.
        assert abs(count - density * layer.numel) <= OWL_SPREAD * layer.numel + 1 + 1e-9
        assert count >= density / 2 * layer.numel - 1 - 1e-9


def test_owl_hand_example_and_order():
    layers = [
        BudgetLayer(n, (10, 100), outliers=o) for n, o in [("a", 0.0), ("b", 0.02), ("c", 0.01)]
    ]
    assert OWL(layers, 0.5) == [420, 580, 500]
    assert OWL(layers, 0.04) == [20, 60, 40]
    assert OWL(layers, 1.0) == [1000, 1000, 1000]
    # Of unequal sizes: the small one may deviate most, the large one pays with little.
    uneven = [BudgetLayer("a", (10, 100), outliers=0.1), BudgetLayer("b", (10, 10), outliers=0.6)]
    large, small = OWL(uneven, 0.5)
    assert (large, small) == (492, 58)
    same = [BudgetLayer(n, (2, 5), outliers=0.1) for n in "ab"]
    assert OWL(same, 0.5) == [5, 5]
    with pytest.raises(InputError, match="'owl': needs the outliers of every layer"):
        OWL([BudgetLayer("a", (2, 2))], 0.5)


def test_outliers_are_counted_by_block():
    assert block_of("model.layers.3.mlp.up_proj") == "model.layers.3"
    assert block_of("layers.3.experts.5.w1") == "layers.3"
    assert block_of("0") == "0"
    assert block_of("encoder.pooler.dense") == "encoder.pooler.dense"
    scores = [torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0]), torch.tensor([[40.0, 2.0]])]
    assert outlier_part(scores) == 1 / 8
    assert outlier_part([torch.empty(0)]) == 0.0

    model = Blocks()
    data = blocks_data()
    batches = as_batches(data, "test")
    layers = layers_with_outliers(model, batches, find_targets(model))
    found = {layer.name: layer.outliers for layer in layers}
    inputs = torch.cat([batch.reshape(-1, 8) for batch in data])
    with torch.no_grad():
        hidden = torch.relu(model.layers[0].up(inputs))
    first = [
        (layer.weight.detach().abs() * x.square().mean(0).sqrt()).flatten()
        for layer, x in ((model.layers[0].up, inputs), (model.layers[0].down, hidden))
    ]
    together = torch.cat(first)
    expected = float((together > 5 * together.mean()).double().mean())
    assert found["layers.0.up"] == found["layers.0.down"] == pytest.approx(expected)
    assert found["layers.1.up"] > found["layers.0.up"]
    counts = dict(zip(found, OWL(layers, 0.5), strict=True))
    assert counts["layers.1.up"] > counts["layers.0.up"]


def test_outliers_of_a_masked_layer_are_those_of_its_kept_weights():
    model = Blocks()
    prune_oneshot(model, sparsity=0.9, targets="out")
    (layer,) = layers_with_outliers(
        model, as_batches(blocks_data(), "test"), find_targets(model, targets="out")
    )
    # 4 of 40 weights: the zeros between them would make every one an outlier.
    assert layer.outliers == 0.0


def height_at(hull, count):
    """The piecewise linear curve through the corners of a hull."""
    for (left, high), (right, low) in itertools.pairwise(hull):
        if left <= count <= right:
            return high + (low - high) * (count - left) / (right - left)
    return hull[0][1]


curves = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=100)
@given(curves, st.floats(0, 1))
def test_sensitivity_equals_brute_force(steps, part):
    layers = []
    for index, curve in enumerate(steps):
        counts = list(itertools.accumulate(step for step, _ in curve))
        errors = [*(float(error) for _, error in curve[:-1]), 0.0]
        points = tuple(zip(counts, errors, strict=True))
        layers.append(BudgetLayer(str(index), (counts[-1], 1), errors=points))
    least = sum(layer.errors[0][0] for layer in layers)
    numel = sum(layer.numel for layer in layers)
    total = least + round(part * (numel - least))
    found = SENSITIVITY(layers, total / numel)
    assert sum(found) == total
    hulls = [lower_hull(layer.errors) for layer in layers]

    def summed(counts):
        return sum(height_at(hull, count) for hull, count in zip(hulls, counts, strict=True))

    ranges = [range(layer.errors[0][0], layer.numel + 1) for layer in layers]
    best = min(summed(c) for c in itertools.product(*ranges) if sum(c) == total)
    assert summed(found) == pytest.approx(best, abs=1e-9)


def test_hulls_by_hand():
    assert lower_hull([(1, 9.0), (2, 8.0), (3, 1.0), (5, 0.0)]) == [(1, 9.0), (3, 1.0), (5, 0.0)]
    assert lower_hull([(1, 3.0), (2, 2.0), (3, 1.0)]) == [(1, 3.0), (3, 1.0)]
    assert lower_hull([(4, 0.0)]) == [(4, 0.0)]
    assert lower_hull([(0, 1.0), (0, 1.0), (4, 0.0)]) == [(0, 1.0), (4, 0.0)]
    for bad in ([(2, 1.0), (1, 0.0)], [(1, math.nan)]):
        with pytest.raises(InputError, match="finite errors at ascending counts"):
            lower_hull(bad)


def test_sensitivity_refuses_what_was_not_measured():
    with pytest.raises(InputError, match="needs the error curve of every layer"):
        SENSITIVITY([BudgetLayer("a", (2, 2))], 0.5)
    layer = BudgetLayer("a", (10, 1), errors=((3, 1.0), (6, 0.0)))
    assert SENSITIVITY([layer], 0.5) == [5]
    for density in (0.2, 0.7):
        with pytest.raises(InputError, match="measured from 3 to 6 kept weights, but"):
            SENSITIVITY([layer], density)


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_curves_are_errors_of_outputs_and_nothing_is_changed(method):
    model = Blocks()
    before = copy.deepcopy(model.state_dict())
    model.train()
    batches = as_batches(blocks_data(), "test")
    targets = find_targets(model)
    solve = None if method == "wanda" else make_method(method, {}).solve
    layers = layers_with_errors(model, batches, targets, 0.5, solve=solve)
    assert [layer.name for layer in layers] == [target.name for target in targets]
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    for layer in layers:
        counts = [count for count, _ in layer.errors]
        assert counts == sorted(set(counts))
        assert counts[0] == math.floor(layer.numel / 8)
        assert layer.errors[-1] == (layer.numel, 0.0)
        assert all(0 <= error <= 1.5 for _, error in layer.errors)
    # The first layer's curve by hand, at half of its weights.
    up = model.layers[0].up
    inputs = torch.cat([batch.arguments.reshape(-1, 8) for batch in batches])
    scores = up.weight.detach().abs() * inputs.square().mean(0).sqrt()
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(4).indices, True)
    change = inputs @ torch.where(mask, 0.0, up.weight.detach()).T
    expected = float(change.square().sum() / (inputs @ up.weight.detach().T).square().sum())
    found = dict(layers[0].errors)[64]
    assert found == pytest.approx(expected, rel=1e-4) if method == "wanda" else found < expected


@pytest.mark.parametrize("budget", ["owl", "sensitivity"])
def test_plans_with_budgets_from_data(budget):
    model = Blocks()
    # An iterator: it is used by the budget and by the scorer.
    plan = plan_oneshot(model, sparsity=0.6, budget=budget, data=iter(blocks_data()))
    total = sum(mask.numel() for mask in plan.masks)
    assert sum(int(mask.sum()) for mask in plan.masks) == kept_count(0.4, total)
    densities = {
        target.name: float(mask.double().mean())
        for target, mask in zip(plan.targets, plan.masks, strict=True)
    }
    assert len(set(densities.values())) > 1
    assert min(densities.values()) >= 0.09
    with pytest.raises(InputError, match=f"budget '{budget}' needs calibration data"):
        plan_oneshot(model, sparsity=0.6, budget=budget)
    with pytest.raises(InputError, match="gives each layer its own sparsity, but pattern 2:4"):
        plan_oneshot(model, pattern="2:4", budget=budget, data=blocks_data())
    blocks = plan_oneshot(
        model, sparsity=0.5, pattern="block:1x4", budget=budget, data=blocks_data(), ignore=["out"]
    )
    for mask in blocks.masks:
        Block(1, 4).validate(mask)


def test_sensitive_layers_keep_more():
    """A layer with one large input needs few weights; one with equal inputs needs them all."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.easy, self.hard = nn.Linear(16, 16), nn.Linear(16, 16)
            self.register_buffer("scale", torch.tensor([100.0] + [0.01] * 15))

        def forward(self, x):
            return self.easy(x * self.scale) + self.hard(x)

    torch.manual_seed(0)
    model = Two()
    batches = as_batches([torch.randn(64, 16)], "test")
    layers = layers_with_errors(model, batches, find_targets(model), 0.5)
    easy, hard = SENSITIVITY(layers, 0.5)
    assert easy + hard == 256
    assert easy < hard
    assert easy >= 32


def test_layers_that_data_does_not_meet_are_refused():
    batches = as_batches([torch.randn(2, 8)], "test")
    stray = nn.ModuleDict({"used": nn.Linear(8, 8), "stray": nn.Linear(8, 8)})
    stray.forward = lambda x: stray["used"](x)
    for measure in (layers_with_outliers, lambda *args: layers_with_errors(*args, 0.5)):
        with pytest.raises(InputError, match=r"stray: no calibration batch.*budget cannot measure"):
            measure(stray, batches, find_targets(stray))


def test_budgets_without_data_look_at_shapes_only():
    model = Blocks()
    for name in ("uniform", "erk", "global"):
        layers = budget_layers(model, [], find_targets(model), BUDGETS.get(name), 0.5, NM(2, 4))
        assert layers[0].shape == (16, 8)
        assert all(layer.outliers is None and layer.errors is None for layer in layers)


def test_curves_of_masked_layers_end_at_what_they_keep():
    model = Blocks()
    prune_oneshot(model, sparsity=0.4)
    targets = find_targets(model)
    layers = layers_with_errors(
        model, as_batches(blocks_data(), "test"), targets, 0.5, pattern=Unstructured()
    )
    for layer, target in zip(layers, targets, strict=True):
        assert layer.errors[-1] == (target.module.nnz, 0.0)
    counts = SENSITIVITY(layers, 0.5)
    assert all(c <= target.module.nnz for c, target in zip(counts, targets, strict=True))
    results = prune_oneshot(model, sparsity=0.5, budget="sensitivity", data=blocks_data())
    assert [result.nnz for result in results] == counts
