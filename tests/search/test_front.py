# SPDX-License-Identifier: Apache-2.0
"""The choice among measured models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.search import Point, SearchLimits
from gossamer.search.front import best, front, nearest


def point(name, lost, ms, size=100):
    return Point(name, "fp32", 100 - 100 * lost, lost, ms, 10 / ms, size)


POINTS = st.lists(
    st.builds(point, st.text("ab", max_size=3), st.floats(-0.1, 1), st.floats(0.1, 20),
              st.integers(1, 500)),
    min_size=1, max_size=12,
)  # fmt: skip


def test_the_fastest_within_the_loss_is_taken():
    points = [point("dense", 0, 10), point("a", 0.005, 5), point("b", 0.02, 2)]
    assert best(points, SearchLimits(0.01)).candidate == "a"
    assert best(points, SearchLimits(0.05)).candidate == "b"
    assert best(points, SearchLimits(0.001)).candidate == "dense"


def test_equally_fast_models_are_told_apart_by_bytes():
    points = [point("large", 0, 5.0, 200), point("small", 0.005, 5.1, 100)]
    assert best(points, SearchLimits(0.01)).candidate == "small"


def test_impossible_limits_give_the_nearest():
    points = [point("dense", 0, 10), point("a", 0.005, 5), point("b", 0.5, 2)]
    limits = SearchLimits(0.01, max_ms=1.0)
    assert best(points, limits) is None
    assert nearest(points, limits).candidate == "a"
    assert nearest(points, SearchLimits(0.01, max_bytes=10)).candidate in ("dense", "a")


@given(POINTS)
def test_nothing_on_the_front_is_beaten(points):
    found = front(points)
    assert found
    for one in found:
        for other in points:
            worse = other.lost > one.lost or other.ms > one.ms or other.size > one.size
            same = (other.lost, other.ms, other.size) == (one.lost, one.ms, one.size)
            assert worse or same
    assert [one.ms for one in found] == sorted(one.ms for one in found)


@given(POINTS, st.floats(0.001, 0.5))
def test_the_best_is_within_the_limits(points, max_loss):
    limits = SearchLimits(max_loss)
    chosen = best(points, limits)
    allowed = [one for one in points if one.lost <= max_loss]
    assert (chosen is None) == (not allowed)
    if chosen is not None:
        assert chosen in allowed
        assert chosen.ms <= 1.03 * min(one.ms for one in allowed)


def test_limits_measure_what_is_exceeded():
    limits = SearchLimits(0.01, max_ms=5, max_bytes=100)
    assert limits.met_by(point("a", 0.01, 5, 100))
    assert limits.excess(point("a", 0.03, 5, 100)) == pytest.approx(2)
    assert limits.excess(point("a", 0, 10, 100)) == pytest.approx(1)
