# SPDX-License-Identifier: Apache-2.0
"""What is measured in the middle of a run: numbers beside the minutes they took, the best state."""

from typing import Any

import torch
from torch import nn

from gossamer.training.checkpoint.random_state import undisturbed_random
from gossamer.training.loop.best_state import BestState
from gossamer.training.loop.run_context import Surroundings
from gossamer.training.loop.settings import LoopSettings
from gossamer.training.loop.stopwatch import Stopwatch


class EvaluationWatch:
    """Evaluates, keeps the time of the run, and follows its best state."""

    def __init__(self, model: nn.Module, settings: LoopSettings, around: Surroundings) -> None:
        self.quality: dict[str, float] = {}
        self.last_step = -1
        self.best = None if settings.keep_best is None else BestState(model, settings.keep_best)
        self.time = Stopwatch(around.clock)
        self._settings, self._around = settings, around

    def position(self, step: int) -> float:
        """Steps taken, or as many as the minutes that are over stand for, if those are more."""
        minutes, steps = self._settings.minutes, self._settings.steps
        if minutes is None:
            return step
        return max(step, min(steps, steps * self.time.read()[0] / (60 * minutes)))

    def measure(self, step: int, model: nn.Module) -> dict[str, Any] | None:
        """The numbers of now, with minutes; generators go on as if nothing had been drawn."""
        if self._around.evaluate is None and self._around.watch is None:
            return None
        found: dict[str, float] = {}
        model.eval()
        with undisturbed_random(), torch.no_grad():
            if self._around.evaluate is not None:
                found.update(self._around.evaluate(model))
            if self._around.watch is not None:
                with self.time.paused():
                    found.update(self._around.watch(model))
        model.train(self._settings.in_train_mode)
        self.quality = {name: float(value) for name, value in found.items()}
        self.last_step = step
        if self.best is not None:
            self.best.look(step, self.quality)
        wall, cpu = (round(seconds / 60, 4) for seconds in self.time.read())
        return {"minutes": wall, "cpu_minutes": cpu, **self.quality}
