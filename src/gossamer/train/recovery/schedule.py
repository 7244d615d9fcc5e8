# SPDX-License-Identifier: Apache-2.0
"""How long recovery trains, how fast, and how often it looks at what it reached."""

import math
from dataclasses import dataclass
from typing import Literal

from gossamer.errors import InputError


@dataclass(frozen=True)
class Schedule:
    """A short run: warm-up, then down to zero.

    Attributes:
        steps: of the optimizer, at most.
        minutes: of training and validation, at most; None: as long as the steps take. With a limit
            in minutes the result depends on the machine's speed.
        rate: highest learning rate.
        warmup: fraction of the run in which the rate rises.
        decay: "linear" or "cosine", to zero.
        clip: largest norm of all gradients together.
        weight_decay: of AdamW.
        checks: how often the model is validated, evenly spread; the start is one more.
        seed: of the order of samples.
    """

    steps: int = 1000
    minutes: float | None = None
    rate: float = 3e-4
    warmup: float = 0.05
    decay: Literal["linear", "cosine"] = "linear"
    clip: float = 1.0
    weight_decay: float = 0.0
    checks: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "checks"):
            if getattr(self, name) < 1:
                raise InputError(f"recovery: {name} must be at least 1, got {getattr(self, name)}.")
        for name in ("rate", "clip", "minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"recovery: {name} must be above 0, got {value}.")
        if not 0 <= self.warmup < 1:
            raise InputError(f"recovery: warmup must be in [0, 1), got {self.warmup}.")
        if self.decay not in ("linear", "cosine"):
            raise InputError(f"recovery: decay must be linear or cosine, got {self.decay!r}.")
        if self.weight_decay < 0:
            raise InputError(
                f"recovery: weight_decay must not be negative, got {self.weight_decay}."
            )

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is over, in [0, 1]."""
        by_time = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max(step / self.steps, by_time))

    def rate_at(self, progress: float) -> float:
        """The learning rate of the step that starts at `progress`."""
        # The first step is taken at 1/steps of the run: a rate of 0 would waste it.
        progress = max(progress, min(1.0 / self.steps, self.warmup))
        if progress < self.warmup:
            return self.rate * progress / self.warmup
        left = (1.0 - progress) / (1.0 - self.warmup)
        if self.decay == "cosine":
            left = 0.5 * (1.0 - math.cos(math.pi * left))
        return self.rate * left
