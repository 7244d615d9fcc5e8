# SPDX-License-Identifier: Apache-2.0
"""Staged training, forecast: when a small model should grow, and what that saves.

`kaplan_forecasts` takes a size and the published scaling law; `FittedCurve` and `forecast` take the
curves of two short runs of yours. Nothing is run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gossamer.errors import InputError

__all__ = ["FittedCurve", "KaplanCurve", "StageForecast", "forecast", "kaplan_forecasts"]


class LossCurve(Protocol):
    """How the loss of one model falls."""

    @property
    def floor(self) -> float:
        """The loss that is never reached."""

    def steps(self, loss: float) -> float:
        """Steps until the loss is that low."""

    def compute(self, loss: float) -> float:
        """Work until then, in units that are the same for all sizes."""


@dataclass(frozen=True)
class KaplanCurve:
    """The scaling law of arXiv 2001.08361 for one size, at the critical batch size.

    Attributes:
        parameters: without embeddings.
    """

    parameters: float

    @property
    def floor(self) -> float:
        """(8.8e13 / N) ^ 0.076."""
        return float((8.8e13 / self.parameters) ** 0.076)

    @property
    def end(self) -> float:
        """The loss at which this size is the best use of compute: a tenth above the floor."""
        return 1.1 * self.floor

    def steps(self, loss: float) -> float:
        """Twice the least number of steps, as at the critical batch size."""
        return float(2 * 2.1e3 * (loss - self.floor) ** (-1 / 0.76))

    def tokens(self, loss: float) -> float:
        """Tokens of one step: the critical batch at that loss."""
        return float(2.1e8 / loss ** (1 / 0.21))

    def compute(self, loss: float) -> float:
        """Floating point operations, 6 per parameter and token."""
        return 6 * self.parameters * self.tokens(loss) * self.steps(loss)


@dataclass(frozen=True)
class FittedCurve:
    """loss = floor + scale * steps ^ -power, fitted to a run.

    Attributes:
        floor, scale, power: of the curve.
        step_cost: work of one step, such as its parameters times its tokens.
    """

    floor: float
    scale: float
    power: float
    step_cost: float

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]], step_cost: float) -> "FittedCurve":
        """Fit (step, loss) points by least squares in the logarithm of steps' weight.

        Raises:
            InputError: fewer than four points, or a loss that does not fall.
        """
        if len(points) < 4:
            raise InputError(f"a curve needs at least 4 points, got {len(points)}.")
        steps, losses = np.array(points, dtype=np.float64).T
        best: tuple[float, float, float, float] | None = None
        for power in np.linspace(0.05, 2.0, 196):
            design = np.stack([np.ones_like(steps), steps**-power], axis=1)
            (floor, scale), *_ = np.linalg.lstsq(design, losses, rcond=None)
            error = float(np.square(design @ (floor, scale) - losses).sum())
            if scale > 0 and floor >= 0 and (best is None or error < best[0]):
                best = (error, float(floor), float(scale), float(power))
        if best is None:
            raise InputError("the loss of this curve does not fall, so nothing can be forecast.")
        return cls(*best[1:], step_cost)

    def steps(self, loss: float) -> float:
        """Steps until the loss is that low."""
        return float(((loss - self.floor) / self.scale) ** (-1 / self.power))

    def compute(self, loss: float) -> float:
        """Steps times the work of one."""
        return self.step_cost * self.steps(loss)


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
