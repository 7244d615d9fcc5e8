# SPDX-License-Identifier: Apache-2.0
"""How long recovery trains, how fast, and how often it looks at what it reached."""

import math
from dataclasses import dataclass
from typing import Literal

from gossamer.errors import InputError
from gossamer.training.loop.learning_rate import LearningRate, Shape
from gossamer.training.loop.settings import LoopSettings

HELD_OUT = "held_out_loss"


@dataclass(frozen=True)
class Schedule:
    """A short run: warm-up, then down to zero.

    Attributes:
        steps: of the optimizer, at most.
        minutes: of training and validation, at most; None: as long as the steps take. With a limit
            in minutes the result depends on the machine's speed.
        rate: highest learning rate.
        warmup: fraction of the run in which the rate rises.
        decay: how it falls to zero; "constant" does not.
        clip: largest norm of all gradients together.
        checks: how often the model is validated, evenly spread; the start is one more.
        checkpoint_every: steps between two checkpoints.
        on_full_disk: "stop", or "go-on" without the checkpoint.
    """

    steps: int = 1000
    minutes: float | None = None
    rate: float = 3e-4
    warmup: float = 0.05
    decay: Shape = "linear"
    clip: float = 1.0
    checks: int = 8
    checkpoint_every: int = 0
    on_full_disk: Literal["stop", "go-on"] = "stop"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checks < 1:
            raise InputError(
                "recovery: steps and checks must be at least 1, got"
                f" {self.steps} and {self.checks}."
            )
        if not self.rate > 0:
            raise InputError(f"recovery: rate must be above 0, got {self.rate}.")
        if not 0 <= self.warmup < 1:
            raise InputError(f"recovery: warmup must be in [0, 1), got {self.warmup}.")

    def loop_settings(self, *, keep_best: bool) -> LoopSettings:
        """The same in the loop's words.

        The model is trained in eval mode: without dropout, and with the running statistics it has,
        it can match a teacher exactly. Its layers have their form already.
        """
        return LoopSettings(
            steps=self.steps,
            minutes=self.minutes,
            rate=LearningRate(self.decay, self.steps, round(self.warmup * self.steps)),
            clip=self.clip,
            in_train_mode=False,
            compaction="off",
            keep_best=HELD_OUT if keep_best else None,
            evaluate_every=math.ceil(self.steps / self.checks),
            checkpoint_every=self.checkpoint_every,
            on_full_disk=self.on_full_disk,
        )
