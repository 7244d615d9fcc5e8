# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError, RegistryError
from gossamer.patterns.selection import kept_count
from gossamer.pruning.budgets import BUDGETS, Budget, BudgetLayer

UNIFORM, GLOBAL, ERK, HALF = (
    BUDGETS.get(name) for name in ("uniform", "global", "erk", "half-erk")
)


def resnet50():
    """(shape, output pixels) of every convolution and the classifier, bottom to top."""
    layers = [((64, 3, 7, 7), 112 * 112)]
    inputs = 64
    for width, blocks, size in [(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)]:
        for block in range(blocks):
            # Stride 2 sits in the 3x3 of the first block of stages 2-4.
            before = size * 2 if block == 0 and width > 64 else size
            layers.append(((width, inputs, 1, 1), before**2))
            layers.append(((width, width, 3, 3), size**2))
            layers.append(((4 * width, width, 1, 1), size**2))
            if block == 0:
                layers.append(((4 * width, inputs, 1, 1), size**2))
            inputs = 4 * width
    return [*layers, ((1000, 2048), 1)]


def budget_layers(shapes):
    return [BudgetLayer(str(index), tuple(shape)) for index, shape in enumerate(shapes)]


def test_the_resnet_50_table_itself_is_right():
    layers = resnet50()
    assert sum(math.prod(shape) for shape, _ in layers) == 25_502_912
    assert sum(math.prod(s) * pixels for s, pixels in layers) == pytest.approx(4.089e9, rel=1e-3)


# sparsity, ERK arithmetic, uniform with a dense first layer, dense layers, conv1, last 3x3, fc
GOLDEN = [
    (0.80, 0.414, 0.223, 8, 0.857, 0.0435, 0.148),
    (0.90, 0.242, 0.126, 1, 0.420, 0.0213, 0.0726),
    (0.95, 0.122, 0.077, 0, 0.210, 0.0106, 0.0363),
]


@pytest.mark.parametrize(("s", "erk", "uniform", "num_dense", "conv1", "last", "fc"), GOLDEN)
def test_erk_golden_figures_of_resnet_50(s, erk, uniform, num_dense, conv1, last, fc):
    shapes = [shape for shape, _ in resnet50()]
    macs = [math.prod(shape) * pixels for shape, pixels in resnet50()]
    layers = budget_layers(shapes)
    counts = ERK(layers, 1 - s)
    assert sum(counts) == kept_count(1 - s, 25_502_912)
    density = [count / layer.numel for count, layer in zip(counts, layers, strict=True)]
    share = sum(d * m for d, m in zip(density, macs, strict=True)) / sum(macs)
    assert share == pytest.approx(erk, abs=6e-4)
    assert sum(d == 1 for d in density) == num_dense
    assert density[0] == pytest.approx(conv1, abs=6e-4)
    last_3x3 = max(i for i, shape in enumerate(shapes) if shape[-1] == 3)
    assert density[last_3x3] == pytest.approx(last, abs=6e-5)
    assert density[-1] == pytest.approx(fc, abs=6e-4)
    even = macs[0] + (1 - s) * sum(macs[1:])
    assert even / sum(macs) == pytest.approx(uniform, abs=6e-4)


@pytest.mark.parametrize(
    ("s", "expected"),
    [
        (0.90, (0.0796, 0.2302, 1.0)),
        (0.95, (0.0385, 0.1113, 0.9185)),
        (0.98, (0.0154, 0.0445, 0.3674)),
    ],
)
def test_erk_golden_figures_of_lenet(s, expected):
    layers = budget_layers([(300, 784), (100, 300), (10, 100)])
    counts = ERK(layers, 1 - s)
    for count, layer, density in zip(counts, layers, expected, strict=True):
        assert count / layer.numel == pytest.approx(density, abs=6e-4)


shapes = st.lists(
    st.lists(st.integers(0, 6), min_size=2, max_size=4).map(tuple), min_size=0, max_size=6
)


def test_half_erk_lies_between_uniform_and_erk():
    layers = budget_layers([(16, 16, 3, 3), (32, 32, 3, 3), (64, 64, 3, 3)])
    counts = HALF(layers, 0.15)
    first, middle, last = (n / layer.numel for n, layer in zip(counts, layers, strict=True))
    # Ratios are the roots of ERK's: sqrt(38/2304) to sqrt(70/9216) to sqrt(134/36864).
    assert first / last == pytest.approx(2.130, abs=5e-3)
    assert middle / last == pytest.approx(1.446, abs=5e-3)
    erk = [n / layer.numel for n, layer in zip(ERK(layers, 0.15), layers, strict=True)]
    assert 0.15 < first < erk[0]
    assert erk[2] < last < 0.15


@pytest.mark.parametrize("budget", [ERK, HALF])
@settings(deadline=None, max_examples=60)
@given(shapes=shapes, density=st.floats(0, 1))
def test_totals_in_proportion_are_exact_and_nothing_overflows(budget, shapes, density):
    layers = budget_layers(shapes)
    counts = budget(layers, density)
    assert sum(counts) == kept_count(density, sum(layer.numel for layer in layers))
    assert all(0 <= count <= layer.numel for count, layer in zip(counts, layers, strict=True))


@settings(deadline=None, max_examples=60)
@given(shapes, st.floats(0, 1), st.integers(0, 99))
def test_global_total_is_exact_under_ties(shapes, density, seed):
    generator = torch.Generator().manual_seed(seed)
    layers = [
        BudgetLayer(str(i), s, torch.randint(0, 3, s, generator=generator).float())
        for i, s in enumerate(shapes)
    ]
    counts = GLOBAL(layers, density)
    assert sum(counts) == kept_count(density, sum(layer.numel for layer in layers))
    # Highest scores first, then (layer, position) order: an independent sort is the oracle.
    entries = [
        (-float(value), index, position)
        for index, layer in enumerate(layers)
        for position, value in enumerate(layer.scores.flatten())
    ]
    kept = [index for _, index, _ in sorted(entries)[: sum(counts)]]
    assert counts == [kept.count(index) for index in range(len(layers))]


def test_global_needs_scores_and_mixes_dtypes():
    with pytest.raises(InputError, match="needs the scores"):
        GLOBAL(budget_layers([(2, 2)]), 0.5)
    layers = [
        BudgetLayer("a", (1, 2), torch.tensor([[1.0, 4.0]])),
        BudgetLayer("b", (1, 2), torch.tensor([[3.0, 2.0]], dtype=torch.float64)),
    ]
    assert GLOBAL(layers, 0.5) == [1, 1]


def test_uniform_rounds_per_layer():
    assert UNIFORM(budget_layers([(3, 3), (10, 10), (0, 4)]), 0.1) == [1, 10, 0]


def test_plugged_in_budgets_are_checked():
    layers = budget_layers([(2, 2)])
    with pytest.raises(InputError, match="gave 0 counts for 1 layers"):
        Budget("mine", lambda layers, density: [])(layers, 0.5)
    with pytest.raises(InputError, match="0 has 4 weights and cannot keep 5"):
        Budget("mine", lambda layers, density: [5])(layers, 0.5)
    with pytest.raises(RegistryError, match=r"Did you mean 'uniform'.*Registered: uniform, glob"):
        BUDGETS.get("uniforn")
