# SPDX-License-Identifier: Apache-2.0
"""The knapsack against brute force; rearrangement against its own objective."""

import itertools

import pytest
import torch

from gossamer.errors import GossamerError, InputError, ResourceError
from gossamer.pruning.structured.search import (
    best_units,
    pruned_objective,
    rearrange_units,
    search_units,
    two_lists,
)


def random_case(seed, linear):
    """Up to 4 groups; costs are linear per kind, or any non-negative integers."""
    g = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 5, (4,), generator=g).tolist()
    scores = [torch.rand(n, generator=g, dtype=torch.float64) for n in sizes]
    if seed % 3 == 0:
        scores = [(s * 3).floor() for s in scores]  # ties and zeros
    head, filter_ = torch.randint(1, 8, (2,), generator=g).tolist()
    if linear:
        units = [head, filter_, head, filter_]
        tables = [
            u * torch.arange(n + 1, dtype=torch.float64) for u, n in zip(units, sizes, strict=True)
        ]
    else:
        tables = [
            torch.cat([torch.zeros(1), torch.randint(0, 9, (n,), generator=g).float()]).double()
            for n in sizes
        ]
    total = sum(float(t.max()) for t in tables)
    choices = [0.0, min(head, filter_) - 0.5, total + 1, *(total * f for f in (0.2, 0.5, 0.8))]
    return scores, tables, (head, filter_), choices[seed % len(choices)]


def brute_force(scores, tables, budget, multiple=1, minimum=0):
    """The largest score of any set of units within the budget."""
    best = None
    subsets = []
    for score, table in zip(scores, tables, strict=True):
        n = len(score)
        allowed = [
            k for k in range(n + 1) if (k % multiple == 0 or k == n) and k >= min(minimum, n)
        ]
        subsets.append(
            [
                (sum(score[list(units)].tolist()), float(table[k]))
                for k in allowed
                for units in itertools.combinations(range(n), k)
            ]
        )
    # Dominated subsets of the same cost cannot be part of a better whole.
    reduced = []
    for options in subsets:
        by_cost = {}
        for value, cost in options:
            by_cost[cost] = max(by_cost.get(cost, -1.0), value)
        reduced.append(list(by_cost.items()))
    for choice in itertools.product(*reduced):
        if sum(cost for cost, _ in choice) <= budget:
            value = sum(value for _, value in choice)
            best = value if best is None else max(best, value)
    return best


def value_and_cost(scores, tables, kept):
    value = sum(float(s[units].sum()) for s, units in zip(scores, kept, strict=True))
    return value, sum(float(t[len(units)]) for t, units in zip(tables, kept, strict=True))


@pytest.mark.parametrize("linear", [True, False])
def test_search_equals_brute_force_on_300_cases(linear):
    for seed in range(300):
        scores, tables, (head, filter_), budget = random_case(seed, linear)
        expected = brute_force(scores, tables, budget)
        found = [search_units(scores, tables, budget)]
        if linear:
            found.append(two_lists(scores, [True, False, True, False], head, filter_, budget))
        for kept in found:
            value, cost = value_and_cost(scores, tables, kept)
            assert cost <= budget
            assert value == pytest.approx(expected, abs=1e-9), (seed, kept)


def test_restrictions_equal_brute_force():
    for seed in range(60):
        scores, tables, _, budget = random_case(seed, linear=False)
        expected = brute_force(scores, tables, budget, multiple=2, minimum=1)
        if expected is None:
            with pytest.raises(ResourceError, match="cannot be met"):
                search_units(scores, tables, budget, multiple=2, minimum=1)
            continue
        kept = search_units(scores, tables, budget, multiple=2, minimum=1)
        assert value_and_cost(scores, tables, kept)[0] == pytest.approx(expected)
        for score, units in zip(scores, kept, strict=True):
            assert len(units) % 2 == 0 or len(units) == len(score)


def test_costs_without_a_common_unit_are_never_over_budget_and_near_the_best():
    for seed in range(40):
        scores, tables, _, budget = random_case(seed, linear=False)
        tables = [t * 1.2345678e9 / 7 for t in tables]
        budget *= 1.2345678e9 / 7
        value, cost = value_and_cost(scores, tables, search_units(scores, tables, budget))
        assert cost <= budget
        assert value >= brute_force(scores, tables, budget * (1 - 1e-3)) - 1e-9


def test_a_larger_budget_never_lowers_the_score():
    g = torch.Generator().manual_seed(0)
    scores = [torch.rand(n, generator=g) for n in (12, 100, 12, 100)]
    tables = [u * torch.arange(n + 1.0).double() for u, n in ((137.5, 12), (1.0, 100)) * 2]
    last = -1.0
    for fraction in torch.linspace(0.01, 1.1, 30).tolist():
        budget = fraction * sum(float(t[-1]) for t in tables)
        kept = best_units(
            scores, tables, [True, False] * 2, budget, multiple=[1] * 4, minimum=[0] * 4
        )
        value, cost = value_and_cost(scores, tables, kept)
        assert cost <= budget
        assert value >= last - 1e-9
        last = value
    assert [len(units) for units in kept] == [12, 100, 12, 100]


def test_dropping_a_layer_is_found_where_a_greedy_rule_fails():
    # Latency tables: 3 for up to two units, one more for each of the others.
    table = torch.tensor([0.0, 3, 3, 4, 5], dtype=torch.float64)
    scores = [torch.tensor([9.0, 1, 0, 0]), torch.tensor([4.5] * 4)]
    assert search_units(scores, [table, table], 5.0) == [[], [0, 1, 2, 3]]


def test_ties_take_the_lower_index_and_the_earlier_group():
    ones = [torch.ones(4), torch.ones(4)]
    tables = [torch.arange(5.0).double()] * 2
    assert search_units(ones, tables, 3) == [[0, 1, 2], []]
    assert two_lists(ones, [True, True], 1, 1, 3) == [[0, 1, 2], []]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_bad_scores_and_costs(bad):
    table = torch.arange(3.0).double()
    with pytest.raises(InputError, match="scores"):
        search_units([torch.tensor([1.0, bad])], [table], 1)
    with pytest.raises(InputError, match="costs"):
        search_units([torch.ones(2)], [torch.tensor([0.0, 1.0, bad])], 1)
    with pytest.raises(InputError, match="one more"):
        search_units([torch.ones(3)], [table], 1)
    with pytest.raises(InputError, match="multiple"):
        search_units([torch.ones(2)], [table], 1, multiple=0)


def test_impossible_budgets():
    for budget in (-1.0, float("nan")):
        with pytest.raises(GossamerError, match="cannot be met"):
            two_lists([torch.ones(2)], [True], 1, 1, budget)
        with pytest.raises(GossamerError, match="cannot be met"):
            search_units([torch.ones(2)], [torch.arange(3.0)], budget)


def best_objective(gradients, pruned):
    units = range(gradients.shape[1])
    return min(
        pruned_objective(gradients, [u for u in units if u not in gone])
        for gone in itertools.combinations(units, pruned)
    )


def test_rearrangement_never_raises_its_objective():
    optimal = 0
    for seed in range(100):
        g = torch.Generator().manual_seed(seed)
        gradients = torch.randn(6, 8, generator=g)
        pruned = 1 + seed % 7
        order = gradients.square().mean(0).argsort(descending=True)
        kept = sorted(order[: 8 - pruned].tolist())
        new = rearrange_units(gradients, kept)
        now = pruned_objective(gradients, new)
        assert len(set(new)) == len(kept)
        assert now <= pruned_objective(gradients, kept) + 1e-12
        optimal += now <= best_objective(gradients, pruned) + 1e-12
    assert optimal >= 40


def test_opposite_gradients_go_together_and_orthogonal_ones_stay():
    assert rearrange_units(torch.tensor([[3.0, -3.0, 1.0]]), [1]) == [2]
    assert rearrange_units(torch.eye(5) * torch.arange(1.0, 6.0), [2, 3, 4]) == [2, 3, 4]


def test_rearranging_all_or_nothing():
    gradients = torch.randn(3, 4)
    assert rearrange_units(gradients, []) == []
    assert rearrange_units(gradients, [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert rearrange_units(torch.randn(3, 0), []) == []
    with pytest.raises(InputError, match="below 4"):
        rearrange_units(gradients, [4])
