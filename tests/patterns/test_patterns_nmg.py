# SPDX-License-Identifier: Apache-2.0
from itertools import pairwise, permutations
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import PatternError
from gossamer.patterns import NMG
from gossamer.patterns.nmg import _greedy, _improve, gray_order


@pytest.mark.parametrize("num_items", range(9))
def test_gray_order_lists_every_choice_once_and_changes_one_entry_at_a_time(num_items):
    for num_chosen in range(num_items + 1):
        order = gray_order(num_items, num_chosen)
        assert len(order) == len(set(order)) == comb(num_items, num_chosen)
        assert all(list(choice) == sorted(set(choice)) for choice in order)
        assert all(set(choice) <= set(range(num_items)) for choice in order)
        for one, next_one in pairwise(order):
            assert sum(a != b for a, b in zip(one, next_one, strict=True)) == 1


@pytest.mark.parametrize("shape", [(0, 0), (0, 12), (8, 0)])
def test_empty_matrices_fit(shape):
    mask = NMG(2, 4, 2).project(torch.zeros(shape))
    assert mask.shape == shape
    NMG(2, 4, 2).validate(mask)


@settings(deadline=None, max_examples=40)
@given(
    kept_of=st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 4), (3, 4), (4, 4), (2, 6)]),
    repeats=st.integers(1, 4),
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    equal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_projection_is_legal(kept_of, repeats, grid, equal, seed):
    pattern = NMG(*kept_of, repeats)
    shape = (grid[0] * pattern.group, grid[1] * pattern.tile_columns)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.ones(shape) if equal else torch.randn(shape, generator=generator)
    mask = pattern.project(scores)
    pattern.validate(mask)
    assert int(mask.sum()) * kept_of[1] == mask.numel() * kept_of[0]
    assert torch.equal(mask, pattern.project(scores))


def test_two_columns_get_the_better_of_both_assignments():
    for seed in range(20):
        scores = torch.rand(2, 2, generator=torch.Generator().manual_seed(seed))
        kept = scores[NMG(1, 2, 1).project(scores)].sum()
        straight, crossed = scores.diagonal().sum(), scores.flip(1).diagonal().sum()
        assert kept == pytest.approx(float(torch.maximum(straight, crossed)))


def test_swaps_improve_the_greedy_choice_and_stay_below_the_optimum():
    gains = torch.rand(50, 5, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    greedy = _greedy(gains, 1)
    improved = _improve(gains, greedy)

    def total(ids):
        return gains.gather(2, ids.unsqueeze(-1)).sum(dim=(1, 2))

    orders = torch.tensor(list(permutations(range(5))))
    best = torch.stack([total(order.expand(50, 5)) for order in orders]).amax(dim=0)
    assert bool((total(improved) >= total(greedy)).all())
    assert bool((total(improved) <= best + 1e-12).all())
    assert float(total(improved).sum()) > float(total(greedy).sum())
    # No single swap is left that would help.
    for a in range(5):
        for b in range(a):
            swapped = improved.clone()
            swapped[:, [a, b]] = improved[:, [b, a]]
            assert bool((total(swapped) <= total(improved) + 1e-6).all())


def test_more_columns_per_tile_retain_more():
    scores = torch.randn(64, 960, generator=torch.Generator().manual_seed(5)).abs()
    shares = [float(scores[NMG(2, 4, g).project(scores)].sum()) for g in (1, 4, 16, 160)]
    plain = float(scores.view(16, 4, 960).topk(2, dim=1).values.sum())
    assert shares == sorted(shares)
    assert 0.99 * plain < shares[-1] <= plain


def test_infinite_scores_are_ranked():
    scores = torch.zeros(2, 4)
    scores[1, 0] = scores[1, 3] = torch.inf
    mask = NMG(1, 2, 2).project(scores)
    assert mask.tolist() == [[False, True, True, False], [True, False, False, True]]


def test_shapes():
    pattern = NMG(2, 4, 16)
    assert (pattern.num_row_patterns, pattern.tile_columns) == (6, 96)
    assert pattern.padded_shape((3, 97)) == (4, 192)
    with pytest.raises(
        PatternError, match=r"fc \[3, 97\].*C\(4, 2\) \* 16 = 96.*pad to \[4, 192\]"
    ):
        pattern.check_shape((3, 97), "fc")


def test_validate_names_the_column_or_the_tile_that_is_wrong():
    pattern = NMG(1, 2, 1)
    mask = torch.tensor([[True, False], [False, True]]).repeat(2, 2)
    pattern.validate(mask)
    crowded = mask.clone()
    crowded[2, 3] = True
    with pytest.raises(PatternError, match="rows 2 to 3 of column 3"):
        pattern.validate(crowded)
    unequal = mask.clone()
    unequal[2:, 3] = unequal[2:, 2]
    with pytest.raises(PatternError, match=r"tile at row 2, column 2 uses rows \(0,\) in 2"):
        pattern.validate(unequal)
