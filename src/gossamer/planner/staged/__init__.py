# SPDX-License-Identifier: Apache-2.0
"""Staged training, forecast: when a small model should grow, and what that saves.

`kaplan_forecasts` takes a size and the published scaling law; `FittedCurve` and `forecast` take the
curves of two short runs of yours. Nothing is run.
"""

from gossamer.planner.staged.curves import FittedCurve, KaplanCurve
from gossamer.planner.staged.forecasts import StageForecast, forecast, kaplan_forecasts

__all__ = ["FittedCurve", "KaplanCurve", "StageForecast", "forecast", "kaplan_forecasts"]
