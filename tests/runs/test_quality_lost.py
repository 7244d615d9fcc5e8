# SPDX-License-Identifier: Apache-2.0
"""Qualities that are no numbers: a candidate has lost everything, a dense model is refused."""

import math

import pytest

from gossamer.errors import InputError
from gossamer.runs.calibration import Quality


def quality(whole: float | None, lower: bool = False) -> Quality:
    return Quality("score", lower, lambda model: 0.0, "40 pairs, a.csv", whole)


@pytest.mark.parametrize("dense", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("whole", [100.0, None])
def test_a_dense_quality_that_is_no_number_is_refused(dense, whole):
    with pytest.raises(InputError, match=r"score of the dense model is .* on 40 pairs, a\.csv"):
        quality(whole).lost(dense, 50.0)


def test_parts_of_nothing_are_refused():
    with pytest.raises(InputError, match="so nothing can be compared with it"):
        quality(None).lost(0.0, 1.0)
    assert quality(100.0).lost(0.0, -1.0) == 0.01


@pytest.mark.parametrize("lower", [False, True])
def test_a_candidate_whose_quality_is_no_number_is_within_no_limit(lower):
    assert quality(100.0, lower).lost(80.0, math.nan) == math.inf
    assert quality(None, True).lost(20.0, math.inf) == math.inf
