# SPDX-License-Identifier: Apache-2.0
"""Searches in time that is made up: the budget is kept, and nothing is said that was not tried."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.search import Point, SearchLimits, ShrinkResult, Trial
from gossamer.search.budget import NEVER, Deadline, OutOfTime, Stopped, TimeBudget
from gossamer.search.candidates import Candidate, dense
from gossamer.search.page import verdict
from gossamer.search.shrinking import pursue

MEASURING = 2.0


class FakeShop:
    """Candidates of so many steps of so many seconds; records outlive it, as files do."""

    def __init__(self, costs, records=None):
        self.now = 0.0
        self.costs = costs
        self.trials, self.unfinished = records or ({}, {})
        self.begun = []

    @property
    def records(self):
        return self.trials, self.unfinished

    def knows(self, candidate):
        return candidate.name in self.trials

    def stopped(self, candidate):
        return self.unfinished.get(candidate.name, NEVER)

    def try_out(self, candidate, deadline):
        if candidate.name in self.trials:
            return self.trials[candidate.name]
        self.begun.append(candidate.name)
        steps, seconds = self.costs[candidate.name]
        earlier = self.unfinished.get(candidate.name)
        before = 0.0 if earlier is None else earlier.seconds
        try:
            for step in range(steps):
                self.now += seconds
                deadline.tick(step + 1, steps)
        except OutOfTime as stop:
            self.unfinished[candidate.name] = Stopped(
                before + stop.seconds, stop.needs, before + deadline.seconds
            )
            raise
        making = deadline.elapsed
        self.now += MEASURING
        trial = Trial(
            candidate.name, before + deadline.elapsed, (), candidate.steps, before + making
        )
        self.trials[candidate.name] = trial
        self.unfinished.pop(candidate.name, None)
        return trial

    def search(self, budget_seconds, reserve=0.0):
        candidates = [
            dense() if name == "dense" else Candidate(name, None, steps=steps * trains)
            for name, (steps, _), trains in zip(
                self.costs, self.costs.values(), [0] + [1, 0] * len(self.costs), strict=False
            )
        ]
        taken = []
        left_out = pursue(
            iter(candidates), self, TimeBudget(budget_seconds, reserve), taken.append,
            lambda seconds: Deadline(seconds, lambda: self.now),
        )  # fmt: skip
        return [trial.candidate for trial in taken], left_out


COSTS = st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 20)), min_size=1, max_size=12).map(
    lambda costs: {"dense": (1, 0.5), **{f"c{i}": cost for i, cost in enumerate(costs)}}
)


@settings(max_examples=150, deadline=None)
@given(COSTS, st.floats(5, 600), st.floats(0, 20))
def test_the_budget_is_kept_but_for_one_safe_step(costs, budget, reserve):
    shop = FakeShop(costs)
    done, left_out = shop.search(budget, reserve)
    # One step that was under way, one measurement of a candidate whose making was just in time.
    longest = max(seconds for _, seconds in costs.values())
    assert shop.now <= max(budget - reserve, 0.5 + MEASURING) + longest + MEASURING
    assert done[0] == "dense"
    assert len(done) + len(left_out) == len(costs)
    names = {text.partition(":")[0] for text in left_out}
    assert names.isdisjoint(done)


@settings(max_examples=60, deadline=None)
@given(COSTS, st.floats(5, 600), st.floats(1, 5))
def test_a_search_that_goes_on_decides_the_same_and_more_time_goes_further(costs, budget, more):
    first = FakeShop(costs)
    done, _ = first.search(budget)
    again = FakeShop(costs, first.records)
    assert again.search(budget)[0] == done
    assert again.begun == []
    further = FakeShop(costs, first.records)
    assert set(done) <= set(further.search(budget * more)[0])


def test_all_is_tried_where_there_is_time():
    shop = FakeShop({"dense": (1, 0.5), "a": (10, 1.0), "b": (10, 1.0)})
    assert shop.search(100.0) == (["dense", "a", "b"], [])


def test_what_is_forecast_to_take_too_long_is_not_begun():
    shop = FakeShop({"dense": (1, 0.5), "a": (10, 1.0), "x": (1, 0.1), "b": (100, 1.0)})
    done, left_out = shop.search(60.0)
    assert done == ["dense", "a", "x"]
    assert shop.begun == done
    assert left_out[0].startswith("b: would take about 1.7 min, ")


def test_on_a_slower_machine_a_candidate_is_given_up_early():
    """Nothing is known of its pace when it begins; its first steps tell."""
    shop = FakeShop({"dense": (1, 0.5), "a": (1000, 1.0), "b": (4, 1.0)})
    done, left_out = shop.search(100.0)
    assert done == ["dense", "b"]
    assert left_out == ["a: stopped after 6 s, would have taken 16.6 min more."]


def test_a_deadline_ends_at_the_next_safe_point():
    now = [0.0]
    deadline = Deadline(10.0, lambda: now[0])
    for now[0], done in ((4.0, 1), (8.0, 2)):
        deadline.tick(done, 3)
    now[0] = 10.5
    with pytest.raises(OutOfTime) as stop:
        deadline.tick()
    assert stop.value.seconds == 10.5
    with pytest.raises(OutOfTime):
        deadline.tick(3, 3)


def test_the_pace_is_that_of_the_last_candidate():
    budget = TimeBudget(1000.0, quality_seconds=3.0)
    budget.learn(dense(), 0.0, 1.0)
    plain, trained = Candidate("plain", None), Candidate("trained", None, steps=10)
    assert budget.needs(Candidate("dense-int8", None)) == 4.0
    budget.learn(trained, 20.0, 4.0)
    budget.learn(plain, 7.0, 4.0)
    # A busy machine made the last one twice as slow as the first.
    budget.learn(trained, 40.0, 4.0)
    assert budget.needs(Candidate("next", None, steps=5)) >= 5 * 4.0


def point(candidate, ms=10.0, lost=0.0, **more):
    return Point(candidate, "int8", 90.0, lost, ms, 10 / ms, 100, **more)


def result(points, *, left_out=(), met=True, chosen=None):
    where = Path("out")
    return ShrinkResult(
        chosen or points[0], met, where, where, "score", 90.0, 90.0, tuple(points), (), (), 1.0,
        bool(left_out), "one text", tuple(left_out), 180.0,
    )  # fmt: skip


INT8 = point("dense-int8", 5.0)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            result([INT8], left_out=["oneshot-80: the time was up.", "slim-50: the time was up."]),
            "Dense in int8 (2.00x dense fp32, +0.00% of the quality lost) is the best of what was"
            " tried; no pruned model was tried. 2 ideas were not tried or not finished: the budget"
            " of 3 min ended first.",
        ),
        (
            result([INT8]),
            "Stay dense, in int8 (2.00x dense fp32, +0.00% of the quality lost): no pruned model"
            " was tried, because none was forecast to be faster.",
        ),
        (
            result([INT8, point("oneshot-80", 2.0, 0.5)], left_out=["slim-50: the time was up."]),
            "Stay dense, in int8 (2.00x dense fp32, +0.00% of the quality lost): the one pruned"
            " model that was tried is not faster within the limits (a loss of 1.00%). 1 idea was"
            " not tried or not finished: the budget of 3 min ended first.",
        ),
        (
            result([INT8, point("oneshot-80", 2.0, 0.5), point("slim-50", 6.0)]),
            "Stay dense, in int8 (2.00x dense fp32, +0.00% of the quality lost): none of the 2"
            " pruned models that were tried is faster within the limits (a loss of 1.00%).",
        ),
        (
            result([point("oneshot-80", 2.0), INT8], left_out=["slim-50: the time was up."]),
            "oneshot-80 int8: 5.00x dense fp32, +0.00% of the quality lost. 1 idea was not tried or"
            " not finished: the budget of 3 min ended first.",
        ),
        (
            result([point("oneshot-80", 2.0, doubt="busy machine: x")]),
            "oneshot-80 int8: 5.00x dense fp32, timed on a busy machine, +0.00% of the quality"
            " lost.",
        ),
        (
            result([INT8], met=False, left_out=["slim-50: the time was up."]),
            "Nothing tried met all limits. Nearest: dense int8: 2.00x dense fp32, +0.00% of the"
            " quality lost. 1 idea was not tried or not finished: the budget of 3 min ended first.",
        ),
    ],
)
def test_the_verdict_says_what_was_tried_and_what_was_not(found, words):
    assert verdict(found, SearchLimits(0.01)) == words


def test_forecasts_leave_time_for_what_they_are_made_for():
    budget = TimeBudget(100.0)
    budget.learn(dense(), 0.0, 10.0)
    assert budget.for_forecasts == 80.0
    budget.spent = 69.0
    assert budget.for_forecasts == 11.0
    budget.spent = 70.0
    assert budget.for_forecasts == 0.0
