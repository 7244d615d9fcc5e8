# SPDX-License-Identifier: Apache-2.0
"""How the loss of a model falls with steps and compute: a scaling law, or a fit to a short run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gossamer.errors import InputError


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
