# SPDX-License-Identifier: Apache-2.0
"""When a run grows its model: at a step, or once its loss falls too slowly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from gossamer.errors import ArtifactError
from gossamer.nn.prunable import active_parameters
from gossamer.training.growth.plan import Growth

_JUMP = 1.01


@dataclass(frozen=True)
class GrowthStep:
    """A growth in the middle of a run.

    Attributes:
        growth: what becomes larger.
        at: after so many steps; None: when the slope says so.
        slope: the model grows once d log(loss) / d log(compute) is above this.
        rewarm: steps over which the learning rate rises again from 0 afterwards.
        rho: the clock of the learning rate goes back to step / rho; None: it goes on.
        lr_factor: times the learning rate from then on: a larger model wants a smaller one.
    """

    growth: Growth
    at: int | None = None
    slope: float | None = None
    rewarm: int = 0
    rho: float | None = None
    lr_factor: float = 1.0


class SlopeMonitor:
    """How fast a loss still falls with the compute that is spent on it.

    Points are smoothed by a running mean; a point that jumps up by more than 1 % is left out. A
    curve is flat once it was steepest some time ago and is now less steep than asked.

    Args:
        window: points of the running mean.
    """

    def __init__(self, window: int = 5) -> None:
        self.window = window
        self.points: list[tuple[float, float]] = []

    def add(self, compute: float, loss: float) -> None:
        """One measurement; `compute` in any unit, as only its ratio counts."""
        jumps = self.points and loss > _JUMP * self.points[-1][1]
        if compute > 0 and math.isfinite(loss) and loss > 0 and not jumps:
            self.points.append((compute, loss))

    def slopes(self) -> list[float]:
        """The slope, d log(loss) / d log(compute), between neighbours of the smoothed curve."""
        smooth = [
            (
                self.points[end - 1][0],
                sum(y for _, y in self.points[end - self.window : end]) / self.window,
            )
            for end in range(self.window, len(self.points) + 1)
        ]
        return [
            math.log(b[1] / a[1]) / math.log(b[0] / a[0])
            for a, b in pairwise(smooth)
            if b[0] > a[0]
        ]

    def is_flat(self, slope: float) -> bool:
        """Whether the curve has passed its steepest place and is flatter than `slope` now."""
        found = self.slopes()
        return len(found) > 1 and found[-1] > slope and found.index(min(found)) < len(found) - 1


class GrowthWatch:
    """The growths of one run: which are done, when the next is due, and the compute so far.

    Args:
        steps: in the order in which they happen.
        tokens: of one optimizer step, for counting compute.
    """

    def __init__(self, steps: Sequence[GrowthStep], tokens: int) -> None:
        self.steps = tuple(steps)
        self.done: list[int] = []
        self.flops = 0.0
        self.monitor = SlopeMonitor()
        self._tokens = tokens
        self._active = 0

    @property
    def is_pending(self) -> bool:
        """Whether the model is still to grow."""
        return len(self.done) < len(self.steps)

    def due(self, step: int) -> GrowthStep | None:
        """The growth that happens now, after `step` steps."""
        if not self.is_pending:
            return None
        wanted = self.steps[len(self.done)]
        if wanted.at is not None:
            return wanted if step >= wanted.at else None
        return wanted if wanted.slope is not None and self.monitor.is_flat(wanted.slope) else None

    def grown(self, step: int) -> None:
        """The next growth was carried out after `step` steps."""
        self.done.append(step)
        self.monitor.points.clear()

    def look_at(self, model: nn.Module) -> None:
        """Count the parameters that take part in products, whenever the model has changed."""
        self._active = active_parameters(model)

    def count_step(self) -> None:
        """One more optimizer step was taken: 6 operations per active parameter and token."""
        self.flops += 6.0 * self._active * self._tokens

    def rate(self, step: int) -> float:
        """The factor on the learning rate of the step after `step`: a rise after each growth."""
        if not self.done:
            return 1.0
        carried_out = self.steps[: len(self.done)]
        rewarm, since = carried_out[-1].rewarm, step - self.done[-1]
        rise = 1.0 if since >= rewarm else (since + 1) / rewarm
        return rise * math.prod(growth.lr_factor for growth in carried_out)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides when the next growth is due."""
        points = [list(point) for point in self.monitor.points]
        return {"done": list(self.done), "flops": self.flops, "points": points}

    def load_state_dict(self, state: Any) -> None:
        """Go on from a saved state."""
        try:
            self.done = [int(step) for step in state["done"]]
            self.flops = float(state["flops"])
            self.monitor.points = [(float(x), float(y)) for x, y in state["points"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"checkpoint: its growth is not usable ({error}).") from error
        if len(self.done) > len(self.steps):
            raise ArtifactError(
                f"checkpoint: its model has grown {len(self.done)} times, the recipe grows it"
                f" {len(self.steps)} times. Resume with the recipe of that run."
            )
