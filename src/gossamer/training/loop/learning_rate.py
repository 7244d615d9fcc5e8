# SPDX-License-Identifier: Apache-2.0
"""Learning rates as a function of the step: nothing to save, nothing to resume."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from gossamer.errors import InputError

Shape = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True)
class LearningRate:
    """A factor on each group's own learning rate: a linear rise, then a fall to `floor`.

    Attributes:
        shape: how it falls; "constant" does not.
        steps: steps of the whole run.
        warmup: steps of the rise; the first step already has 1 / warmup.
        floor: the factor at the end.
    """

    shape: Shape
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= max(self.steps, 0):
            raise InputError(
                f"learning rate: warm-up of {self.warmup} steps does not fit a run of {self.steps}."
            )
        if not 0 <= self.floor <= 1:
            raise InputError(f"learning rate: floor must be in [0, 1], got {self.floor}.")

    def factor(self, step: float) -> float:
        """The factor of step `step`, counted from 0; runs by the clock stand between two steps."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant":
            return 1.0
        done = min((step - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        left = 1 - done if self.shape == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.floor + (1 - self.floor) * left

    def apply(self, optimizer: torch.optim.Optimizer, step: float) -> float:
        """Set the learning rate of every group for `step`; that of the first."""
        factor = self.factor(step)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        return float(optimizer.param_groups[0]["lr"])
