# SPDX-License-Identifier: Apache-2.0
"""What training a small model first and growing it would save, forecast from curves of the loss.

A curve says after how many steps a model of one size has a loss. The small model is left where its
loss falls too slowly; the large one goes on from the step at which it would have had that loss
itself. What is saved is what the large model did not have to do.
"""

import math
from dataclasses import dataclass

import numpy as np

from gossamer.errors import InputError
from gossamer.planner.staged.curves import KaplanCurve, LossCurve

# Slopes d log(loss) / d log(compute) at which to grow, and to stop: arXiv 2203.06211.
TAU = {"depth": -0.0575, "width": -0.0475, "depth and width": -0.03}
TAU_STOP = -0.052
# How many times as many parameters a doubling makes.
RATIO = {"depth": 2, "width": 4, "depth and width": 8}
_FINE = 4000


@dataclass(frozen=True)
class StageForecast:
    """One growth, forecast.

    Attributes:
        loss: at which the small model grows.
        steps_before: of the small model until then.
        steps_target: of the large model until that loss: where its clock stands after growth.
        steps_after: of the large model until the end, counted on its own clock.
        saving: part of the compute of training the large model from scratch.
    """

    loss: float
    steps_before: float
    steps_target: float
    steps_after: float
    saving: float

    @property
    def rho(self) -> float:
        """Steps before over steps after growth: how far the clock goes back."""
        return self.steps_before / self.steps_target


def staged_saving(before: float, target: float, end: float, ratio: float) -> float:
    """The part of compute that growth saves, from steps on the clock of each model.

    Args:
        before: steps of the small model.
        target: step of the large model's clock after growth.
        end: steps of the large model from scratch.
        ratio: parameters of the large model over those of the small one.
    """
    return (target - before / ratio) / end


def slope_of(curve: LossCurve, loss: float) -> float:
    """The slope d log(loss) / d log(compute) of a curve where it has this loss."""
    near = 1e-6 * (loss - curve.floor)
    low, high = curve.compute(loss - near), curve.compute(loss + near)
    return math.log((loss - near) / (loss + near)) / math.log(low / high)


def forecast(
    small: LossCurve, large: LossCurve, end: float, tau: float | None = None
) -> StageForecast:
    """What growing from one curve to the other saves until the large model has the loss `end`.

    Args:
        small: of the model that is trained first.
        large: of the grown one, as if it were trained from scratch.
        end: the loss that is wanted.
        tau: slope of the small model's loss at which it grows; None: where most is saved.

    Raises:
        InputError: the large model never has that loss.
    """
    if end <= large.floor:
        raise InputError(
            f"the large model never has a loss of {end:g}; its floor is {large.floor:g}."
        )
    lowest = max(small.floor * (1 + 1e-4), end)
    losses = np.geomspace(lowest, 4 * lowest, _FINE)
    if tau is None:
        saved = [large.compute(loss) - small.compute(loss) for loss in losses]
        loss = float(losses[int(np.argmax(saved))])
    else:
        # The curve becomes flatter on its way down: the first loss that is flat enough.
        flat = [loss for loss in losses if slope_of(small, loss) > tau]
        loss = float(flat[-1]) if flat else float(lowest)
    return StageForecast(
        loss=loss,
        steps_before=small.steps(loss),
        steps_target=large.steps(loss),
        steps_after=large.steps(end),
        saving=(large.compute(loss) - small.compute(loss)) / large.compute(end),
    )


def kaplan_forecasts(parameters: float) -> dict[str, StageForecast]:
    """Staged training of a language model of this size by each doubling, with published slopes."""
    large = KaplanCurve(parameters)
    return {
        name: forecast(KaplanCurve(parameters / ratio), large, large.end, TAU[name])
        for name, ratio in RATIO.items()
    }
