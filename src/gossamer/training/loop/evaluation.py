# SPDX-License-Identifier: Apache-2.0
"""What is measured in the middle of a run: numbers beside the minutes they took, the best state."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.training.checkpoint.random_state import undisturbed_random
from gossamer.training.loop.run import TrainingRun


class Stopwatch:
    """How long a run has taken, through kills and resumes.

    Args:
        clock: for limits that do not depend on other work, time.process_time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = [0.0, 0.0]
        self._clocks = (clock, time.process_time)
        self._last: list[float] | None = None

    def start(self) -> None:
        """Time counts from now on."""
        self._last = [clock() for clock in self._clocks]

    def read(self) -> list[float]:
        """By the clock, and CPU seconds of all threads."""
        if self._last is not None:
            before = self._last
            self.start()
            spent = zip(self.seconds, self._last, before, strict=True)
            self.seconds = [held + (new - old) for held, new, old in spent]
        return self.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside does not count."""
        self.read()
        try:
            yield
        finally:
            self.start()


class BestState:
    """What training moves, as it was at the best evaluation of a run; lower is better.

    Args:
        model: parameters that take gradients are kept, and buffers that files hold (statistics of
            batch norms, scales of tables); their names and shapes must stay.
        name: of the number that the evaluations are compared by.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self.first = self.value = math.nan
        self.step = -1
        self._name = name
        self._trained: dict[str, torch.Tensor] = {
            n: p for n, p in model.named_parameters() if p.requires_grad
        }
        for path, module in model.named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set:
                    self._trained[f"{path}.{name}"] = buffer
        self._kept: dict[str, torch.Tensor] = {}

    def look(self, step: int, quality: Mapping[str, float]) -> None:
        """Keep the state of now if no evaluation so far was as good."""
        if self._name not in quality:
            raise InputError(f"keep_best: the evaluation has no number {self._name!r}.")
        value = quality[self._name]
        if not self._kept:
            self.first = value
        if not self._kept or math.isnan(self.value) or value < self.value:
            self.value, self.step = value, step
            self._kept = {name: param.detach().clone() for name, param in self._trained.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Bring the model back to it; nothing happens before the first look."""
        for name, value in self._kept.items():
            self._trained[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"first": self.first, "value": self.value, "step": self.step, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        kept = state["kept"]
        shapes = {name: param.shape for name, param in self._trained.items()}
        if kept and {name: tensor.shape for name, tensor in kept.items()} != shapes:
            raise ArtifactError("checkpoint: its best state is not one of this model.")
        self.first, self.value, self.step = state["first"], state["value"], state["step"]
        self._kept = dict(kept)


class EvaluationWatch:
    """Evaluates, keeps the time of the run, and follows its best state."""

    def __init__(self, run: TrainingRun) -> None:
        self.quality: dict[str, float] = {}
        self.last_step = -1
        name = run.settings.keep_best
        self.best = None if name is None else BestState(run.model, name)
        self.time = Stopwatch(run.around.clock)
        self._run = run

    def position(self) -> float:
        """Steps taken, or as many as the minutes that are over stand for, if those are more."""
        step, minutes, steps = self._run.step, self._run.settings.minutes, self._run.settings.steps
        if minutes is None:
            return step
        return max(step, min(steps, steps * self.time.read()[0] / (60 * minutes)))

    def measure(self, model: nn.Module) -> dict[str, Any] | None:
        """The numbers of now, with minutes; generators go on as if nothing had been drawn."""
        around = self._run.around
        if around.evaluate is None and around.watch is None:
            return None
        found: dict[str, float] = {}
        model.eval()
        with undisturbed_random(), torch.no_grad():
            if around.evaluate is not None:
                found.update(around.evaluate(model))
            if around.watch is not None:
                with self.time.paused():
                    found.update(around.watch(model))
        model.train(self._run.settings.in_train_mode)
        self.quality = {name: float(value) for name, value in found.items()}
        self.last_step = self._run.step
        if self.best is not None:
            self.best.look(self.last_step, self.quality)
        wall, cpu = (round(seconds / 60, 4) for seconds in self.time.read())
        return {"minutes": wall, "cpu_minutes": cpu, **self.quality}
