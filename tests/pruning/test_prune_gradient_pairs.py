# SPDX-License-Identifier: Apache-2.0
"""V:N:M by pairs against brute force over all sets of columns."""

import itertools

import pytest
import torch

from gossamer.errors import InputError
from gossamer.patterns import VNM
from gossamer.pruning.gradients.fisher import (
    FisherBlocks,
    in_blocks,
    in_rows,
    inverse_blocks,
    without,
)
from gossamer.pruning.gradients.obert import PairCosts, choose_by_pairs, drop_cheapest, pair_costs


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair_sets(dropped, group):
    """The dropped columns of a group, pair by pair."""
    pairs = [(first, first + 1) for first in range(0, group, 2)]
    return [[c for c in pair if c in dropped] for pair in pairs]


def set_cost(weight, inverse, columns):
    """Exact cost of dropping `columns` of one row: w_Q^T ([F^-1]_QQ)^-1 w_Q / 2."""
    if not columns:
        return 0.0
    part = torch.linalg.inv(inverse[columns][:, columns])
    return float(weight[columns] @ part @ weight[columns] / 2)


@pytest.mark.parametrize("num_pairs", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_the_table_finds_the_cheapest_set(num_pairs, seed):
    first, second, both = random(3, 2, num_pairs, seed=seed).abs()
    costs = PairCosts(torch.zeros_like(first), first, second, both)
    singles = torch.stack([first, second], dim=-1).flatten(1)
    for num_dropped in range(2 * num_pairs + 1):
        found = drop_cheapest(costs, num_dropped)
        assert found.shape == (2, num_pairs, 2)
        for row in range(2):

            def total(columns, row=row):
                sets = pair_sets(columns, 2 * num_pairs)
                return sum(
                    float(both[row, p]) if len(s) == 2 else sum(float(singles[row, c]) for c in s)
                    for p, s in enumerate(sets)
                )

            chosen = found[row].flatten().nonzero()[:, 0].tolist()
            assert len(chosen) == num_dropped
            best = min(map(total, itertools.combinations(range(2 * num_pairs), num_dropped)))
            assert total(chosen) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("group", [4, 5, 7, 8])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("width", [3, 8])
def test_both_steps_equal_brute_force(group, rows, width):
    """Blocks of 3 rows, the last one short; Fisher blocks cut some pairs apart."""
    num_columns = 2 * group
    weight = random(rows, num_columns, seed=group)
    gradients = random(9, rows, num_columns, seed=rows)
    fisher = FisherBlocks("layer", gradients, width, 0.1)
    inverse = torch.zeros(rows, num_columns, num_columns, dtype=torch.float64)
    for r in range(rows):
        for k in range(0, num_columns, width):
            g = gradients[:, r, k : k + width]
            damp = fisher.damp() * torch.eye(g.shape[1], dtype=torch.float64)
            inverse[r, k : k + width, k : k + width] = torch.linalg.inv(g.T @ g / 9 + damp)
    mask = choose_by_pairs(VNM(3, group), weight, *fisher.neighbours(), None)
    VNM(3, group).validate(mask)

    def cost(r, start, dropped):
        return sum(
            set_cost(weight[r], inverse[r], [start + c for c in columns])
            for columns in pair_sets(dropped, group)
        )

    columns = set(range(group))
    for block in range(0, rows, 3):
        members = range(block, min(block + 3, rows))
        for start in (0, group):
            shared = min(
                itertools.combinations(range(group), group - 4),
                key=lambda gone: sum(cost(r, start, gone) for r in members),
            )
            for r in members:
                best = min(
                    itertools.combinations(sorted(columns - set(shared)), 2),
                    key=lambda more: cost(r, start, {*shared, *more}),
                )
                kept = columns - set(shared) - set(best)
                found = mask[r, start : start + group].nonzero()[:, 0].tolist()
                assert set(found) == kept


def test_costs_of_pairs_equal_small_inverses():
    weight, gradients = random(2, 8, seed=1), random(5, 2, 8, seed=2)
    fisher = FisherBlocks("layer", gradients, 4, 0.2)
    costs = pair_costs(VNM(2, 8), weight, *fisher.neighbours(), None)
    inverse = inverse_blocks(in_blocks(gradients, 4), fisher.damp(), "layer").view(2, 2, 4, 4)
    for r, block, pair in itertools.product(range(2), range(2), range(2)):
        w, a = weight[r, 4 * block : 4 * block + 4], inverse[r, block]
        index = 2 * block + pair
        for found, columns in (
            (costs.first, [2 * pair]),
            (costs.second, [2 * pair + 1]),
            (costs.both, [2 * pair, 2 * pair + 1]),
        ):
            assert float(found[r, 0, index]) == pytest.approx(set_cost(w, a, columns), rel=1e-10)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_pruned_goes_first(seed):
    pattern = VNM(4, 8)
    old = pattern.project(random(8, 16, seed=seed).abs())
    weight = torch.where(old, 1e-9 * random(8, 16, seed=seed), 0.0)
    gradients = random(5, 8, 16, seed=seed + 1) * old
    mask = choose_by_pairs(
        pattern, weight, *FisherBlocks("layer", gradients, 8, 0.01).neighbours(), old
    )
    assert torch.equal(mask, old)


def recursive_inverse(gradients, damp):
    """The textbook way: one rank-one update per gradient."""
    inverse = torch.eye(gradients.shape[1], dtype=torch.float64) / damp
    for g in gradients:
        column = inverse @ g
        inverse = inverse - torch.outer(column, column) / (len(gradients) + g @ column)
    return inverse


@pytest.mark.parametrize(("passes", "width"), [(1, 1), (1, 4), (3, 8), (40, 8)])
def test_the_inverse_equals_the_explicit_one_and_the_recursion(passes, width):
    gradients = (random(passes, 6, width) * 10).float()
    inverse = inverse_blocks(gradients, 0.5, "layer")
    assert inverse.dtype == torch.float64
    for block in range(6):
        g = gradients[:, block].double()
        fisher = g.T @ g / passes + 0.5 * torch.eye(width, dtype=torch.float64)
        torch.testing.assert_close(inverse[block], torch.linalg.inv(fisher), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(inverse[block], recursive_inverse(g, 0.5), rtol=1e-9, atol=1e-12)


def test_too_little_damping_is_told():
    gradients = torch.tensor([[[1e12, 1e12, 1.0], [1.0, 2.0, 3.0]]], dtype=torch.float64)
    with pytest.raises(InputError, match=r"layer: 1 of 2 blocks.*Raise damping"):
        inverse_blocks(gradients, 1e-12, "layer")


def test_the_update_is_the_constrained_minimum():
    """Kept weights minimise the quadratic form; nothing near them is better."""
    gradients, weight = random(6, 3, 5), random(3, 5, seed=1)
    dropped = random(3, 5, seed=2) > 0
    dropped[2] = False
    inverse = inverse_blocks(gradients, 0.1, "layer")
    new = without(weight, inverse, dropped, "layer")
    for n in range(3):
        fisher = torch.linalg.inv(inverse[n])
        gone, kept = dropped[n], ~dropped[n]
        right = fisher[kept][:, gone] @ weight[n][gone]
        expected = weight[n][kept] + torch.linalg.inv(fisher[kept][:, kept]) @ right
        torch.testing.assert_close(new[n][kept], expected)
        assert new[n][gone].abs().max() < 1e-12 if gone.any() else torch.equal(new[n], weight[n])


@pytest.mark.parametrize("columns", [1, 4, 5, 8])
def test_rows_are_cut_and_put_together(columns):
    matrix = random(2, 3, columns)
    blocks = in_blocks(matrix, 4)
    assert blocks.shape == (2, 3 * -(-columns // 4), 4)
    for p in range(2):
        assert torch.equal(in_rows(blocks[p], columns), matrix[p])


def test_slices_do_not_change_the_result(monkeypatch):
    weight, gradients = random(7, 16, seed=1), random(5, 7, 16, seed=2)
    fisher, pattern = FisherBlocks("layer", gradients, 6, 0.1), VNM(4, 8)
    mask = choose_by_pairs(pattern, weight, *fisher.neighbours(), None)
    new = fisher.update(weight, mask)
    monkeypatch.setattr("gossamer.pruning.gradients.fisher.SLICE_NUMBERS", 1)
    monkeypatch.setattr("gossamer.pruning.gradients.obert.SLICE_NUMBERS", 1)
    again = choose_by_pairs(pattern, weight, *fisher.neighbours(), None)
    assert torch.equal(again, mask)
    torch.testing.assert_close(fisher.update(weight, mask), new, rtol=1e-12, atol=1e-12)
