# SPDX-License-Identifier: Apache-2.0
"""Staged training, forecast: the published constants, and curves that are known exactly."""

import pytest

from gossamer.errors import InputError
from gossamer.planner.staged import (
    TAU,
    TAU_STOP,
    FittedCurve,
    KaplanCurve,
    forecast,
    kaplan_forecasts,
    slope_of,
    staged_saving,
)


@pytest.mark.parametrize("parameters", [1e7, 1e8, 1e9, 1e10])
def test_the_scaling_law_gives_the_same_ratio_and_saving_for_every_size(parameters):
    found = kaplan_forecasts(parameters)
    assert found["width"].rho == pytest.approx(2.718, abs=0.01)
    assert found["depth"].rho == pytest.approx(1.617, abs=0.01)
    assert found["width"].saving == pytest.approx(0.078, abs=0.001)
    assert found["depth"].saving == pytest.approx(0.066, abs=0.001)


def test_the_best_use_of_compute_has_the_published_slope():
    curve = KaplanCurve(1e8)
    assert slope_of(curve, curve.end) == pytest.approx(TAU_STOP, abs=1e-3)


def test_no_slope_saves_more_than_the_best():
    large = KaplanCurve(6.79e8)
    small = KaplanCurve(6.79e8 / 4)
    best = forecast(small, large, large.end).saving
    assert best == pytest.approx(0.080, abs=0.001)
    for tau in (-0.1, -0.06, -0.05, TAU["width"], -0.04):
        assert forecast(small, large, large.end, tau).saving <= best + 1e-9


@pytest.mark.parametrize(
    ("before", "target", "end", "ratio", "saving"),
    [
        (2949, 2149, 5099, 2, 0.132),
        (6799, 4549, 7749, 2, 0.148),
        (3799, 2049, 5099, 4, 0.216),
        (6299, 3549, 7749, 4, 0.255),
    ],
)
def test_the_published_table_is_recomputed_from_its_steps(before, target, end, ratio, saving):
    assert staged_saving(before, target, end, ratio) == pytest.approx(saving, abs=6e-4)


def test_curves_of_short_runs_are_fitted_and_forecast():
    steps = [50, 100, 200, 400, 800, 1600]
    small = FittedCurve.of([(s, 2.0 + 9.0 * s**-0.5) for s in steps], step_cost=1.0)
    assert (small.floor, small.scale, small.power) == pytest.approx((2.0, 9.0, 0.5), rel=1e-3)
    large = FittedCurve.of([(s, 1.6 + 10.0 * s**-0.5) for s in steps], step_cost=4.0)
    made = forecast(small, large, end=1.9)
    assert 0 < made.saving < 1
    assert made.saving == pytest.approx(
        staged_saving(made.steps_before, made.steps_target, made.steps_after, 4), rel=1e-6
    )


def test_a_small_model_that_is_no_cheaper_saves_nothing():
    curve = FittedCurve(2.0, 9.0, 0.5, 1.0)
    assert forecast(curve, curve, end=2.1).saving == 0.0


def test_what_cannot_be_forecast_says_why():
    with pytest.raises(InputError, match="at least 4 points"):
        FittedCurve.of([(1, 2.0)], 1.0)
    with pytest.raises(InputError, match="does not fall"):
        FittedCurve.of([(s, 1.0 + 0.1 * s) for s in range(1, 9)], 1.0)
    with pytest.raises(InputError, match="never has a loss"):
        forecast(KaplanCurve(1e7), KaplanCurve(1e8), 1.0)
