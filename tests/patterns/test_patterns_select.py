# SPDX-License-Identifier: Apache-2.0
"""Exact selection against sorting in Python."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns.selection import keep_largest, summable

INF = float("inf")


def largest_by_sorting(row: list[float], num_kept: int) -> list[bool]:
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    kept = set(order[:num_kept])
    return [i in kept for i in range(len(row))]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_nothing_to_select_from(shape):
    mask = keep_largest(torch.zeros(shape), 1)
    assert mask.shape == shape
    assert mask.dtype is torch.bool


@pytest.mark.parametrize(("num_kept", "expected"), [(0, 0), (1, 1), (4, 4), (9, 4)])
def test_count_is_exact_when_all_scores_are_equal(num_kept, expected):
    mask = keep_largest(torch.full((3, 4), 7.0), num_kept)
    assert mask.sum(dim=1).tolist() == [expected] * 3
    assert mask[:, :expected].all()


def test_infinities_rank_like_numbers():
    mask = keep_largest(torch.tensor([-INF, 1.0, INF, -INF, INF, 0.0]), 3)
    assert mask.tolist() == [False, True, True, False, True, False]
    assert keep_largest(torch.tensor([-INF, -INF, -INF]), 2).tolist() == [True, True, False]


def test_negative_zero_ties_with_zero():
    assert keep_largest(torch.tensor([-0.0, 0.0, -0.0]), 1).tolist() == [True, False, False]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda width: st.lists(
            st.lists(
                st.sampled_from([-INF, -2.0, 0.0, 0.5, 1.0, INF]), min_size=width, max_size=width
            ),
            min_size=1,
            max_size=4,
        )
    ),
    num_kept=st.integers(0, 9),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_selection_equals_sorting_with_ties_to_the_left(rows, num_kept, dtype):
    mask = keep_largest(torch.tensor(rows, dtype=dtype), num_kept)
    assert mask.tolist() == [largest_by_sorting(row, num_kept) for row in rows]


def test_summable_keeps_order_and_makes_sums_finite():
    scores = torch.tensor([[-INF, -3.0, 0.0, 1e-30, 2.0, 3e38, INF]])
    wide = summable(scores)
    assert wide.dtype is torch.float64
    assert bool(wide.sum().isfinite())
    assert bool((wide.diff(dim=1) > 0).all())
    finite_sum = wide[0, 1:-1].abs().sum()
    assert wide[0, -1] > finite_sum
    assert wide[0, 0] < -finite_sum


def test_summable_of_huge_float64_does_not_overflow():
    wide = summable(torch.full((4, 4), 1e308, dtype=torch.float64))
    assert bool(wide.sum().isfinite())
    assert bool((wide > 0).all())


def test_summable_of_nothing_and_of_zeros():
    assert summable(torch.zeros(0, 3)).shape == (0, 3)
    assert summable(torch.zeros(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
