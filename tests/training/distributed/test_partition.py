# SPDX-License-Identifier: Apache-2.0
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.errors import InputError
from gossamer.training.distributed import partition


def dearest(costs, bounds):
    return max(sum(costs[start:stop]) for start, stop in bounds)


def brute_force(costs, num_parts):
    places = combinations(range(1, len(costs)), num_parts - 1)
    cuts = ((0, *place, len(costs)) for place in places)
    return min(dearest(costs, list(pairwise(cut))) for cut in cuts)


@given(st.data())
def test_no_cut_is_better(data):
    costs = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=9))
    num_parts = data.draw(st.integers(1, len(costs)))
    bounds = partition(costs, num_parts)
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == len(costs)
    assert all(start < stop for start, stop in bounds)
    assert dearest(costs, bounds) == brute_force(costs, num_parts)


def test_one_dear_item_stands_alone():
    assert partition([1, 1, 9, 1, 1], 3) == ((0, 2), (2, 3), (3, 5))


@pytest.mark.parametrize(("costs", "num_parts"), [([], 1), ([1.0], 2), ([1.0], 0)])
def test_parts_without_items_are_refused(costs, num_parts):
    with pytest.raises(InputError, match="non-empty parts"):
        partition(costs, num_parts)


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_costs_that_are_none_are_refused(cost):
    with pytest.raises(InputError, match=">= 0"):
        partition([1.0, cost], 1)
