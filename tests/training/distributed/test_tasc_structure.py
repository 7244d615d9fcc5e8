# SPDX-License-Identifier: Apache-2.0
"""Which blocks are chosen: within the budget, by score, none older than the limit."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.training.distributed.tasc.blocks import choose_blocks


def choose(scores, sizes, ages, budget, max_age=10):
    return choose_blocks(
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(sizes, dtype=torch.int64),
        torch.tensor(ages, dtype=torch.int64),
        budget=budget,
        max_age=max_age,
    ).tolist()


def test_no_blocks():
    assert choose([], [], [], 5) == []


def test_the_best_scores_that_fit_are_chosen():
    assert choose([1, 3, 2, 4], [5, 5, 5, 5], [1, 1, 1, 1], 10) == [False, True, False, True]


def test_equal_scores_go_to_the_first_block():
    assert choose([1, 1, 1], [5, 5, 5], [1, 1, 1], 10) == [True, True, False]


def test_one_block_is_sent_even_if_none_fits_or_scores():
    assert choose([1, 2], [5, 5], [1, 1], 1) == [False, True]
    assert choose([0, 0], [5, 5], [1, 1], 1) == [True, False]


def test_old_blocks_are_sent_whatever_they_score():
    assert choose([9, 0, 9], [5, 5, 5], [1, 10, 1], 5) == [False, True, False]


def test_a_part_of_the_budget_is_for_blocks_that_grow_old():
    chosen = choose([9] * 8 + [0, 0], [1] * 10, [1] * 8 + [6, 7], 4)
    assert chosen == [True] * 3 + [False] * 5 + [False, True]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.integers(1, 50), st.integers(1, 12)),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 400),
)
def test_budget_and_age_limit_hold(blocks, budget):
    scores, sizes, ages = zip(*blocks, strict=True)
    chosen = choose(scores, sizes, ages, budget)
    assert all(chosen[i] for i in range(len(ages)) if ages[i] >= 10)
    spent = sum(s for s, c, a in zip(sizes, chosen, ages, strict=True) if c and a < 10)
    forced = sum(s for s, a in zip(sizes, ages, strict=True) if a >= 10)
    assert spent + forced <= max(budget, forced) or sum(chosen) == 1
    assert any(chosen)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=30), st.integers(2, 20))
def test_no_block_waits_longer_than_the_limit(sizes, max_age):
    """Simulated with scores that would starve all blocks but the first."""
    ages, budget = [0] * len(sizes), max(sizes)
    for _ in range(3 * max_age):
        ages = [age + 1 for age in ages]
        scores = [1.0] + [1e-9] * (len(sizes) - 1)
        chosen = choose(scores, sizes, ages, budget, max_age)
        assert all(c or age < max_age for c, age in zip(chosen, ages, strict=True))
        ages = [0 if c else age for c, age in zip(chosen, ages, strict=True)]
